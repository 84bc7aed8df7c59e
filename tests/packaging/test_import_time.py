"""How long imports take, against importing what they need alone.

Measured in the installed environments, where everything is compiled: the processor time of a
fresh interpreter, the best of several, and the reference in the same run.  Bars are ratios, so
they hold on a slow machine and beside other work.
"""

from __future__ import annotations

import os
import subprocess
from typing import Final

import pytest

from tests.packaging.venvs import Environment, clean_environment

RUNS: Final = 9
ROUNDS: Final = 5

LIBRARY: Final = "import pyarrow, pydantic, structlog"
FLIGHT: Final = "import pyarrow, pyarrow.flight"
CLIENT: Final = "from flight_service.client import connect"


def cpu_seconds(environment: Environment, code: str) -> float:
    """Processor time of an interpreter that runs this."""
    process = subprocess.Popen(
        [environment.path / "bin/python", "-c", code],
        cwd=environment.path,
        env=clean_environment(),
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def ratio(environment: Environment, code: str, reference: str, bar: float) -> float:
    """How many times as long one takes as the other, at best; they take turns.

    Measured again, up to a limit, while it is over the bar: other work on the machine makes a
    run slower, never faster.
    """
    own: list[float] = []
    other: list[float] = []
    for _ in range(ROUNDS):
        for _ in range(RUNS):
            own.append(cpu_seconds(environment, code))
            other.append(cpu_seconds(environment, reference))
        if min(own) <= bar * min(other):
            break
    return min(own) / min(other)


def test_library(base: Environment) -> None:
    """Scenario: ``import quiver``. Guarantee: at most 1.3 times what its dependencies take. (It
    takes much less: names are imported on first use.)"""
    assert ratio(base, "import quiver", LIBRARY, 1.3) <= 1.3


def test_whole_engine(base: Environment) -> None:
    """Scenario: a program opens a store. Guarantee: at most 3 times what the dependencies take.

    It is 2.5: a third of the rest is pydantic making the models of the settings, which
    ``import pydantic`` puts off, an eighth ``pyarrow.compute``, which the first put would wait
    for otherwise, and the rest the engine's modules.
    """
    assert ratio(base, "import quiver; quiver.open", LIBRARY, 3.0) <= 3.0


@pytest.mark.parametrize("command", ["inspect", "verify", "dump", "repair"])
def test_command(base: Environment, command: str) -> None:
    """Scenario: an offline command. Guarantee: at most twice what the dependencies take."""
    assert ratio(base, f"import quiver.cli.{command}", LIBRARY, 2.0) <= 2.0


def test_client(everything: Environment) -> None:
    """Scenario: the client, where numpy is installed, as it mostly is with pyarrow. Guarantee: at
    most 1.3 times what pyarrow takes."""
    assert ratio(everything, CLIENT, FLIGHT, 1.3) <= 1.3


def test_client_without_numpy(client: Environment) -> None:
    """Scenario: the client, pyarrow and nothing else. Guarantee: at most 1.8 times what pyarrow
    takes.

    It is 1.55, 20 ms more than pyarrow: without numpy pyarrow takes less than half as long, and
    `typing`, `json`, `inspect` and `dataclasses` of the standard library are loaded by the client
    instead of by numpy.
    """
    assert ratio(client, CLIENT, FLIGHT, 1.8) <= 1.8


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import quiver", ("pyarrow", "pydantic", "flight_service", "pyspark")),
        ("import quiver.cli.inspect", ("pydantic", "yaml", "flight_service", "pyspark")),
        (
            "import quiver; quiver.open",
            ("flight_service", "pyspark", "prometheus_client", "pyarrow.flight", "typer"),
        ),
        (CLIENT, ("quiver", "flight_service.server", "pydantic", "pyspark", "random", "pathlib")),
        ("import flight_service.server", ("pyspark", "typer", "flight_service.client")),
    ],
)
def test_what_is_not_loaded(everything: Environment, code: str, absent: tuple[str, ...]) -> None:
    """Scenario: everything is installed. Guarantee: server, Spark and commands are loaded by
    those who use them, and by no other import."""
    printed = everything.python(f"{code}\nimport sys\nprint(*sys.modules)").split()
    assert [name for name in absent if name in printed] == []
