"""A lack of memory says nothing about the data: it is neither damage nor a bad bundle."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_service.server.edge import service_error
from quiver.errors import OutOfResources
from quiver.format.arrow import ipc
from quiver.segment.verified import VerifiedChunks
from tests.support.stores import World, batch


def _no_memory(*_: object, **__: object) -> None:
    raise pa.lib.ArrowMemoryError("malloc of size 64 failed")


def test_a_read_without_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: Arrow finds no memory for a batch of a sound segment. Guarantee: the reader is
    told to try again; nothing is set aside or recorded as lost, and the next read succeeds.
    (Taken for damage, the segment was rebuilt and its bundles were lost on record.)"""
    world = World()
    (ref,) = world.sealed(7)
    with monkeypatch.context() as lacking:
        lacking.setattr(VerifiedChunks, "batch", _no_memory)
        with pytest.raises(OutOfResources):
            world.store.read(ref)
    assert world.store.status().state == "ok"
    assert world.store.losses == ()
    assert world.number_at(ref) == 7


def test_a_put_without_memory_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: Arrow finds no memory to encode a bundle. Guarantee: it is refused for now, not
    for good, and the store takes it afterwards."""
    world = World()
    with monkeypatch.context() as lacking:
        lacking.setattr(ipc, "EncodedBatch", _no_memory)
        with pytest.raises(OutOfResources) as refused:
            world.store.put({"Logs": batch(7)})
    assert refused.value.retryable
    (ref,) = world.put_durable(7)
    assert world.number_at(ref) == 7


@pytest.mark.parametrize("error", [MemoryError(), pa.lib.ArrowMemoryError("no")])
def test_the_server_asks_to_try_again(error: Exception) -> None:
    """Scenario: a call runs out of memory anywhere. Guarantee: `out_of_resources`, to be retried,
    not `internal`, which makes a producer drop its bundle."""
    said = service_error(error)
    assert (said.code, said.retryable) == ("out_of_resources", True)
