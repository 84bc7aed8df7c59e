"""Four lines over time: what must not grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.soak.samples import Sample

PANELS = (
    ("memory", "resident memory, MiB", 2**20),
    ("disk", "bytes on disk, MiB", 2**20),
    ("descriptors", "open descriptors", 1),
    ("threads", "threads", 1),
)


def draw(samples: Sequence[Sample], path: Path, title: str) -> None:
    """Write the picture; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True)
    minutes = [sample.seconds / 60 for sample in samples]
    for axis, (name, label, unit) in zip(axes.flat, PANELS, strict=True):
        axis.plot(minutes, [getattr(sample, name) / unit for sample in samples], linewidth=0.8)
        axis.set_ylim(bottom=0)
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("minutes")
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
