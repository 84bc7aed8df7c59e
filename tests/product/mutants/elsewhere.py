"""Defects of processes and of the server: another suite must find them.

The chaos suite plays all of them as well (profiles fork, descriptors, recreated and rest), for as
long as one likes; these are the tests that find them at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from flight_service.server import stream
from flight_service.server.deleted import DeletedStreams
from quiver import forking
from quiver.disk import disk
from tests.crash.mutants.tools import instead
from tests.product.mutants.tools import mutant


class _Nothing:
    """A collection that keeps nothing."""

    def add(self, thing: object) -> None: ...

    def clear(self) -> None: ...

    def __iter__(self) -> Iterator[object]:
        return iter(())


@mutant(
    "defect 3",
    "tests/unit/store/test_fork.py::test_the_child_writes_nothing_and_the_parent_goes_on",
)
def child_uses_the_store() -> AbstractContextManager[Any]:
    """A forked child may use the store of its parent."""
    return instead(forking, "_guarded", _Nothing())


@mutant(
    "defect 6",
    "tests/unit/disk/test_descriptors.py::test_a_directory_that_cannot_be_opened_is_no_failed_sync",
)
def no_descriptor_is_a_failed_sync() -> AbstractContextManager[Any]:
    """A directory that can't be opened for its sync poisons the stream."""
    return instead(disk, "NotOpened", ())


@mutant(
    "defect 12",
    "tests/wire/test_recreated.py::test_a_late_ack_of_the_old_stream_finishes_nothing_of_the_new",
)
def recreated_from_zero() -> AbstractContextManager[Any]:
    """A stream that is deleted and made again gives out its refs once more."""
    return instead(DeletedStreams, "first_segment", lambda self, name: 0)


@mutant(
    "defect 13",
    "tests/wire/test_recreated.py::test_any_change_of_the_service_file_is_noticed",
)
def service_file_unchecked() -> AbstractContextManager[Any]:
    """The checksum in `service.json` is not compared."""

    def decode(data: bytes, *_: Any, **__: Any) -> Any:
        return json.loads(data)["body"]

    return instead(stream, "decode_checked", decode)
