"""The ``docker`` command: every call has a limit, and a failure says what it said."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

REPOSITORY: Final = Path(__file__).parents[2]
SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.2


def run(
    words: Sequence[str],
    *,
    seconds: float = SECONDS,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command; what it said is in the answer, standard error included."""
    done = subprocess.run(
        list(words),
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if check and done.returncode:
        raise AssertionError(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-3000:]}")
    return done


def docker(*words: str, seconds: float = SECONDS, check: bool = True) -> str:
    """What a docker command answers."""
    return run(["docker", *words], seconds=seconds, check=check).stdout.strip()


@functools.cache
def compose_command() -> tuple[str, ...]:
    """Compose as a plugin of docker, or the older program."""
    if run(["docker", "compose", "version"], check=False).returncode == 0:
        return ("docker", "compose")
    return ("docker-compose",)


@functools.cache
def problem() -> str | None:
    """Why containers can't be run here; ``None`` if they can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    try:
        asked = run(["docker", "info", "--format", "{{.ServerVersion}}"], check=False)
    except subprocess.TimeoutExpired:
        return "the Docker engine doesn't answer"
    if asked.returncode:
        return f"the Docker engine doesn't answer: {asked.stdout.strip()[-300:]}"
    if compose_command() == ("docker-compose",) and shutil.which("docker-compose") is None:
        return "there is neither `docker compose` nor docker-compose"
    return None


def eventually(look: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """Look until there is something to see; what it is."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    seen: object = None
    while time.monotonic() < deadline:
        try:
            found = look()
        except (OSError, AssertionError) as error:
            seen = error
        else:
            if found:
                return found
            seen = found
        pause.wait(LOOK_SECONDS)
    raise AssertionError(f"not within {seconds:.0f} s: {what} (last: {seen})")
