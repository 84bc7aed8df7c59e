"""What the documentation shows is what happens: its examples, run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import quiver
from examples.demo.__main__ import choose_job
from examples.demo.java import found

ROOT = Path(__file__).resolve().parents[2]


def examples(docstring: str | None) -> Iterator[str]:
    """The indented blocks behind a ``::`` that are Python."""
    block: list[str] = []
    inside = False
    for line in [*textwrap.dedent(docstring or "").splitlines(), "end"]:
        if inside and (line.startswith("    ") or not line.strip()):
            block.append(line)
            continue
        if inside and block:
            code = textwrap.dedent("\n".join(block)).strip()
            block = []
            try:
                ast.parse(code)
            except SyntaxError:
                pass  # a drawing
            else:
                yield code
        inside = line.rstrip().endswith("::")


def test_the_packages_own_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the example at the top of the package, as it stands. Guarantee: it runs, and
    what was put was shipped."""
    monkeypatch.chdir(tmp_path)
    [code] = examples(quiver.__doc__)
    logs, attrs = pa.record_batch({"body": ["hi"]}), pa.record_batch({"key": ["host"]})
    shipped: list[tuple[pa.RecordBatch, pa.RecordBatch]] = []
    names = {"logs": logs, "attrs": attrs, "ship": lambda *batches: shipped.append(batches)}
    exec(compile(code, "quiver/__init__.py", "exec"), names)
    assert [(a.num_rows, b.num_rows) for a, b in shipped] == [(1, 1)]
    assert (tmp_path / "telemetry" / "LOCK").exists()


def test_the_example_of_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the settings that `open` shows. Guarantee: they are taken as it says."""
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent("    " + (quiver.open.__doc__ or ""))
    [code] = examples(text)
    store = eval(code, {"quiver": quiver})
    with store:
        assert store.config.wal.flush == "every"
        assert store.config.segment.target_size == 8 << 20


@pytest.mark.slow
def test_the_demo_loses_nothing() -> None:
    """Scenario: `make demo` without Spark and with few rows, a kill -9 in the middle.
    Guarantee: it ends well, and its table says so: nothing lost, doubled or changed."""
    demo = [sys.executable, "-m", "examples.demo", "--plain", "--rows", "200000"]
    done = subprocess.run(demo, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("lost", "doubled", "bundles not as put"):
        [line] = [one for one in done.stdout.splitlines() if re.match(rf"\W+{row} ", one)]
        assert re.findall(r"\d+", line) == ["0", "0"], line


JAVA = "#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n"


@pytest.mark.parametrize(
    ("version", "good"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_402", False)]
)
def test_the_demo_knows_which_java_will_do(
    version: str, good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a machine whose Java says that version. Guarantee: taken only if Spark runs
    on it."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA.format(version=version))
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert found() is good
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    assert found() is good


def test_the_demo_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario: no Java, and no way to install it. Guarantee: the demo says the one command,
    and goes on with the plain client."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not found()
    assert choose_job(Console(), spark=True) == "plain_job"
    assert "sudo apt-get install -y openjdk-17-jre-headless" in capsys.readouterr().out
    assert choose_job(Console(), spark=False) == "plain_job"
