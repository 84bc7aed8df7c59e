"""The images, built once for the files they are made of.

An image's tag is a digest of everything that goes into it, so a second run finds it and
builds nothing.  Images of earlier states of the code are removed: layers are shared, names
would pile up.

``python -m tests.integration.images`` builds them ahead of the tests, whose time limits
don't allow for it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.integration.engine import REPOSITORY, docker, problem, run
from tests.support.compat import release

SERVICE: Final = "quiver-service"
SPARK: Final = "quiver-spark"
BASE_SECONDS: Final = 600.0
BUILD_SECONDS: Final = 900.0
TEST_TAG: Final = "it-"
PASSED_ON: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")

INPUTS: Final = {
    SERVICE: ("Dockerfile", "pyproject.toml", "constraints.txt", "quiver", "flight_service"),
    SPARK: ("Dockerfile", "constraints.txt"),
}
NEXT_VERSION: Final = "99.0.0"
LAST_VERSION: Final = "0.1.0"


def build_all() -> str:
    """Both images, under one tag; the tag.  Safe to call from several processes."""
    with open(Path(tempfile.gettempdir()) / "quiver-integration-images.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base = base_image()
        tag = TEST_TAG + _digest([*INPUTS[SERVICE], *INPUTS[SPARK]], base)
        for name, inputs in INPUTS.items():
            content = f"{name}:{TEST_TAG}c-{_digest(inputs, base)}"
            if not _there(content):
                _build(name, content, base)
            docker("tag", content, f"{name}:{tag}")
            _forget_others(name, {content.partition(":")[2], tag, next_tag(tag), last_tag(tag)})
        return tag


def next_tag(tag: str) -> str:
    """The tag of the release after the one under test."""
    return f"{tag}-next"


def build_next(tag: str) -> str:
    """The service again, as another release: the same code under a later version number."""
    made = f"{SERVICE}:{next_tag(tag)}"
    if not _there(made):
        text = (
            f"FROM {SERVICE}:{tag}\nUSER root\n"
            "RUN sed -i 's/^Version: .*/Version: " + NEXT_VERSION + "/'"
            " /opt/quiver/lib/python3*/site-packages/quiver_buffer-*.dist-info/METADATA\n"
            "USER quiver\n"
        )
        with tempfile.TemporaryDirectory() as context:
            (Path(context) / "Dockerfile").write_text(text)
            docker("build", "--tag", made, context, seconds=BUILD_SECONDS)
    return next_tag(tag)


def last_tag(tag: str) -> str:
    """The tag of the last release, made on the image under test."""
    return f"{tag}-last"


def build_last(tag: str) -> str:
    """The service with the code of the last release, from its frozen wheel.

    Only the project's own packages are replaced: what they need is the same for both."""
    made = f"{SERVICE}:{last_tag(tag)}"
    wheel = release(LAST_VERSION).wheel
    if not _there(made):
        text = (
            f"FROM {SERVICE}:{tag}\nUSER root\nCOPY {wheel.name} /tmp/\n"
            'RUN cd "$(python -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')"'
            " && rm -r quiver flight_service quiver_buffer-*.dist-info"
            f" && python -m zipfile -e /tmp/{wheel.name} . && rm /tmp/{wheel.name}\n"
            "USER quiver\n"
        )
        with tempfile.TemporaryDirectory() as context:
            (Path(context) / "Dockerfile").write_text(text)
            shutil.copy(wheel, context)
            docker("build", "--tag", made, context, seconds=BUILD_SECONDS)
    return last_tag(tag)


@functools.cache
def base_image() -> str:
    """What the images are built on: the usual one, or where there is no registry our own."""
    said = run([str(REPOSITORY / "docker" / "base.sh")], seconds=BASE_SECONDS).stdout
    return said.strip().splitlines()[-1]


def build_arguments(base: str) -> list[str]:
    """What a build needs to know of this machine."""
    passed_on = [f"--build-arg={one}" for one in PASSED_ON if os.environ.get(one)]
    return [f"--build-arg=BASE_IMAGE={base}", *passed_on]


def _build(name: str, tag: str, base: str) -> None:
    target = name.removeprefix("quiver-")
    words = ("build", *build_arguments(base), "--target", target, "--tag", tag, str(REPOSITORY))
    docker(*words, seconds=BUILD_SECONDS)


def _there(image: str) -> bool:
    return run(["docker", "image", "inspect", image], check=False).returncode == 0


def _forget_others(name: str, kept: set[str]) -> None:
    for tag in docker("images", name, "--format", "{{.Tag}}").split():
        if tag.startswith(TEST_TAG) and tag not in kept:
            docker("rmi", f"{name}:{tag}", check=False)  # one in use stays


def _digest(inputs: tuple[str, ...] | list[str], base: str) -> str:
    digest = hashlib.sha256(base.encode())
    for path in sorted(set(_files(inputs))):
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _files(inputs: tuple[str, ...] | list[str]) -> Iterator[Path]:
    for name in inputs:
        path = REPOSITORY / name
        if path.is_file():
            yield path
        else:
            yield from (one for one in path.rglob("*.py") if "__pycache__" not in one.parts)


if __name__ == "__main__":
    if problem() is None:  # without an engine the tests say what they make of it
        sys.stdout.write("images: building what is not there yet, up to some minutes ...\n")
        sys.stdout.flush()
        build_all()
