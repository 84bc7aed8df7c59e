"""The examples in the client's docstrings are run, against a real server."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from flight_service import client as package
from flight_service.client import Client, Receipt, Stream, connect
from flight_service.server import Server

ROOMS = ("session", "stream")
DEMANDED = {
    Stream: ("put", "writer", "subscribe", "read", "get", "batches", "tail", "register", "ack"),
    Client: ("streams", "create_stream", "delete_stream", "health"),
}


def examples() -> Iterator[doctest.DocTest]:
    """Every docstring of the public rooms that has an example."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for room in ROOMS:
        module = importlib.import_module(f"flight_service.client.{room}")
        yield from (found for found in finder.find(module) if found.examples)


EXAMPLES = {found.name.removeprefix("flight_service.client."): found for found in examples()}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(server: Server, name: str) -> None:
    """What the documentation shows is what happens, in a stream with a bundle or two."""
    url = f"grpc://127.0.0.1:{server.port}"
    logs = pa.record_batch({"body": ["one", "two"], "level": ["info", "warn"]})
    attrs = pa.record_batch({"key": ["a"], "value": ["b"]})
    with connect(url) as q:
        telemetry = q.stream("telemetry")
        receipt: Receipt | None = None
        if name != "stream.Stream.put":
            receipt = telemetry.put({"Logs": logs, "LogAttrs": attrs}, key="job-1/0")
            telemetry.register("exporter")
        if name == "session.Client.delete_stream":
            q.create_stream("metrics")
        if name == "stream.Stream.unregister":
            telemetry.register("archive", start="latest")
        names = {"q": q, "url": url, "telemetry": telemetry, "receipt": receipt, "connect": connect}
        test = EXAMPLES[name]
        test.globs.update(names, logs=logs, attrs=attrs, pa=pa)
        report: list[str] = []
        runner = doctest.DocTestRunner()
        runner.run(test, out=report.append)
        assert runner.failures == 0, "".join(report)


def test_the_words_people_begin_with_have_examples() -> None:
    """A method without an example is found by a user, not by a reader."""
    for owner, names in DEMANDED.items():
        for name in names:
            assert ">>>" in (inspect.getdoc(getattr(owner, name)) or ""), f"{owner}.{name}"


def test_all_that_is_public_is_documented() -> None:
    """Every name the package gives out, and each of its methods, says what it is for."""
    for name in package.__all__:
        thing = getattr(package, name)
        assert inspect.getdoc(thing), name
        for method, member in inspect.getmembers(thing, inspect.isfunction):
            if not method.startswith("_"):
                assert inspect.getdoc(member), f"{name}.{method}"


def test_pyarrow_is_all_it_needs() -> None:
    """With everything else of ours hidden, the client can be imported: a producer's machine
    needs no more."""
    hidden = "quiver typer rich pydantic structlog yaml blake3 crc32c isal prometheus_client"
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({hidden.split()!r}))\n"
        "import flight_service.client as c\n"
        "print(c.connect.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "connect\n", done.stderr
