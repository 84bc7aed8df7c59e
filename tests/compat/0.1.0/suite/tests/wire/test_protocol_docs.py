"""docs/protocol.md is true: its examples run with pyarrow alone, its tables are the code's."""

from __future__ import annotations

import re
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_service.protocol.actions import ACTIONS
from flight_service.protocol.reference import update
from flight_service.server import Server
from tests.wire.conftest import serve

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def sections() -> dict[str, str]:
    """The examples under each heading; those before the first one are the beginning."""
    found: dict[str, str] = {}
    heading = ""
    for part in re.split(r"^(#{2,3} .*)$", PAGE.read_text(), flags=re.MULTILINE):
        if part.startswith(("## ", "### ")):
            heading = part.lstrip("# ")
        elif blocks := BLOCK.findall(part):
            found[heading] = "\n".join(blocks)
    return found


EXAMPLES = sections()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with pyarrow in it, and nothing else."""
    where = tmp_path_factory.mktemp("bare")
    venv.create(where, with_pip=False, symlinks=True)
    (packages,) = where.glob("lib/python*/site-packages")
    installed = Path(sysconfig.get_paths()["purelib"])
    for name in ("pyarrow", "pyarrow.libs"):
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    return where / "bin" / "python"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("docs") / "data"
    server = serve(root)
    yield server
    server.kill()


def run(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_environment_is_bare(bare_python: Path) -> None:
    """Scenario: the environment of the examples. Guarantee: pyarrow is there, and none of
    what the server needs."""
    assert run(bare_python, "import pyarrow.flight").returncode == 0
    for module in ("quiver", "flight_service", "pydantic", "numpy", "structlog"):
        assert run(bare_python, f"import {module}").returncode != 0, module


@pytest.mark.parametrize("heading", [one for one in EXAMPLES if one])
def test_examples_run_as_they_stand(bare_python: Path, server: Server, heading: str) -> None:
    """Scenario: each example of the page, against a real server. Guarantee: it works, with
    nothing but pyarrow installed."""
    code = (EXAMPLES[""] + EXAMPLES[heading]).replace(":8815", f":{server.port}")
    done = run(bare_python, code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_tables_are_the_codes_own() -> None:
    """Scenario: a field is added and the page forgotten. Guarantee: this test remembers:
    `python -m flight_service.protocol.reference docs/protocol.md` mends it."""
    text = PAGE.read_text()
    assert update(text) == text


def test_every_call_has_an_example() -> None:
    """Scenario: the page as a whole. Guarantee: no action and no RPC without an example."""
    code = "\n".join(EXAMPLES.values())
    missing = [name for name in ACTIONS if f'act("{name}"' not in code]
    assert not missing
    for rpc in ("do_put", "do_get", "do_exchange", "get_flight_info", "get_schema"):
        assert f"client.{rpc}(" in code
    assert "client.list_flights(" in code
    assert "client.list_actions(" in code
