"""One wheel, and one environment for each way to install it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.venvs import (
    Environment,
    build_wheel,
    clean_environment,
    make_bare_environment,
    make_environment,
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``pip install quiver-buffer``."""
    return make_environment(tmp_path_factory.mktemp("base"), wheel)


@pytest.fixture(scope="session")
def server(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``pip install 'quiver-buffer[server]'``."""
    return make_environment(tmp_path_factory.mktemp("server"), wheel, ["server"])


@pytest.fixture(scope="session")
def spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``pip install 'quiver-buffer[spark]'``."""
    return make_environment(tmp_path_factory.mktemp("spark"), wheel, ["spark"])


@pytest.fixture(scope="session")
def everything(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``pip install 'quiver-buffer[server,spark]'``."""
    return make_environment(tmp_path_factory.mktemp("all"), wheel, ["server", "spark"])


@pytest.fixture(scope="session")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``pip install pyarrow`` and ``pip install --no-deps quiver-buffer``."""
    return make_bare_environment(tmp_path_factory.mktemp("client"), wheel, "pyarrow")


@pytest.fixture(scope="session")
def url(server: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server is that was started by the installed command."""
    root = tmp_path_factory.mktemp("root")
    flags = ["--port", "0", "--http-port", "0", "--set", "reserve=0", "--json"]
    command = [str(server.path / "bin/quiver"), "serve", "--root", str(root / "data"), *flags]
    with (
        open(root / "log", "w") as log,
        subprocess.Popen(
            command,
            cwd=root,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline()
                assert line, (root / "log").read_text()
                text += line
            yield json.loads(text)["flight"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
