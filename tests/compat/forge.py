"""Starts servers of the current version for the suite of a release: ``quiver serve``, many times.

The suite's own process runs the release's code, so it can't start a server of the current code
itself; and a new interpreter for each test would take longer than the tests.  This process
imports the current code once and forks for each server.  Requests and answers are lines of
JSON, on standard input and output:

``{"serve": ["--root", …], "log": path}``   → ``{"pid": …, "flight": url, "http": url}``
``{"end": pid, "signal": 15, "timeout": 30}`` → ``{"status": exit status, or minus the signal}``

When standard input ends, every server that is left is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any, NoReturn

import quiver
from flight_service.server import Server  # noqa: F401 - what a server needs is loaded before it forks
from quiver.cli import app


def serve(arguments: list[str], log: str) -> dict[str, Any]:
    """Fork a server; where it listens."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        become_server(arguments, writing, log)
    os.close(writing)
    said = b""
    try:
        while part := os.read(reading, 65_536):
            said += part
            try:
                return {"pid": pid, **json.loads(said)}
            except ValueError:
                continue  # not all of it yet
    finally:
        os.close(reading)
    _, status = os.waitpid(pid, 0)
    return {"failed": os.waitstatus_to_exitcode(status), "log": log}


def become_server(arguments: list[str], writing: int, log: str) -> NoReturn:
    """Be ``quiver serve`` until told to end."""
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, place in ((nothing, 0), (writing, 1), (errors, 2)):
        os.dup2(fd, place)
    try:
        app(["serve", "--json", *arguments])
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    os._exit(0)


def end(pid: int, number: int, timeout: float) -> dict[str, Any]:
    """Signal a server and wait for it; killed when time is up."""
    watched = os.pidfd_open(pid)
    try:
        os.kill(pid, number)
        if not select.select([watched], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return {"status": os.waitstatus_to_exitcode(status)}
    finally:
        os.close(watched)


def main() -> None:
    """Answer requests until there are no more."""
    alive: set[int] = set()
    sys.stdout.write(json.dumps({"quiver": quiver.__file__}) + "\n")
    sys.stdout.flush()
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if "serve" in asked:
                answer = serve(asked["serve"], asked["log"])
                alive |= {answer["pid"]} if "pid" in answer else set()
            else:
                answer = end(asked["end"], asked["signal"], asked["timeout"])
                alive.discard(asked["end"])
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
