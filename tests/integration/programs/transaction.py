"""Stage bundles of a transaction, commit what was staged, or both; say a line for each."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import pyarrow as pa

from flight_service.client import Stream, connect


def say(**entry: Any) -> None:
    """A line of the journal, at once."""
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


def stage(stream: Stream, app: str, bundles: int) -> tuple[str, ...]:
    """Put the bundles where nobody sees them yet; the names to commit."""
    with stream.stage(app, 0) as share:
        for number in range(bundles):
            rows = {"who": [app], "n": pa.array([number], pa.int64()), "body": ["staged"]}
            share.put({"Logs": pa.record_batch(rows)})
        attempts = share.finish().attempts
    say(staged=attempts)
    return attempts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("stream")
    parser.add_argument("app")
    parser.add_argument("--bundles", type=int, default=0, help="stage so many")
    parser.add_argument("--commit", nargs="*", metavar="ATTEMPT", help="these and the staged ones")
    given = parser.parse_args()
    with connect(given.server, wait=30) as client:
        stream = client.stream(given.stream)
        attempts = stage(stream, given.app, given.bundles) if given.bundles else ()
        if given.commit is not None:
            done = stream.commit(given.app, 0, (*given.commit, *attempts))
            say(committed=done.bundles, repeated=done.repeated)


if __name__ == "__main__":
    main()
