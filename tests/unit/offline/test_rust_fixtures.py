"""Dumps of directories that the Rust crate really wrote, against what went into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.format.crc import crc32
from quiver.format.segment.file import TAIL_SIZE, decode_footer
from quiver.offline.dump import Dump, Saved, dump
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import (
    FIXTURES,
    NAMES,
    Image,
    batches_of,
    dumped,
    expected,
    fixture,
    opened,
)


def still_there(name: str) -> list[dict[str, Any]]:
    return [bundle for bundle in expected(name)["bundles"] if not bundle["segment_deleted"]]


def wanted_batch(name: str, slot: dict[str, Any]) -> pa.RecordBatch:
    with pa.ipc.open_stream((FIXTURES / name / slot["file"]).read_bytes()) as reader:
        return reader.read_next_batch()


def same_values(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether two batches say the same, whatever became of their dictionaries."""

    def same(a: pa.Array, b: pa.Array) -> bool:
        if a.type == b.type and a.equals(b):
            return True
        return bool(a.to_pylist() == b.to_pylist())

    return one.schema.names == other.schema.names and all(map(same, one, other))


def compare(name: str, saved: Saved, wanted: dict[str, Any], out: Disk) -> None:
    """One bundle: slots, fingerprints, rows, values and, where the crate kept them, types."""
    assert saved.sequence == wanted["wal_sequence"]
    assert saved.ingestion_ts_ns == wanted["ingestion_ts_ns"]
    if wanted["segment"] is not None:
        assert saved.ref == (wanted["segment"], wanted["bundle"])
    slots = {slot["slot"]: slot for slot in wanted["slots"]}
    assert [slot.slot for slot in saved.slots] == sorted(slots)
    folder = f"{saved.ref[0]}.{saved.ref[1]}"
    batches = batches_of(saved, out)
    for slot in saved.slots:
        want = slots[slot.slot]
        assert (slot.fingerprint, slot.rows) == (want["fp"], want["rows"])
        assert slot.file == f"{folder}/{slot.slot}.arrows"
        batch = wanted_batch(name, want)
        if name == "dict" and wanted["segment"] is not None:
            assert same_values(batches[slot.slot], batch)
        else:
            assert batches[slot.slot].schema.equals(batch.schema, check_metadata=True)
            assert batches[slot.slot].equals(batch)
        if wanted["segment"] is None:
            assert out.read(slot.file) == (FIXTURES / name / want["file"]).read_bytes()


def outcomes(name: str, index: int) -> dict[str, str]:
    """What the crate's files say: rejected is stored as acked, deferred not at all."""
    return {
        subscriber: "acked" if index in {*what["acked"], *what["rejected"]} else "pending"
        for subscriber, what in expected(name)["subscribers"].items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_dump_equals_what_went_in(name: str) -> None:
    """Every bundle that is still there comes out, in order, once, equal, with its outcomes."""
    result, out = dumped(fixture(name))
    assert (result.sound, result.lost, result.maybe_doubled) == (True, (), None)
    wanted = still_there(name)
    assert len(result.saved) == len(wanted)
    for saved, want in zip(result.saved, wanted, strict=True):
        compare(name, saved, want, out)
        assert saved.subscribers == outcomes(name, want["index"])


@pytest.mark.parametrize("name", NAMES)
def test_dump_and_open_agree_on_refs(name: str) -> None:
    """The refs a dump gives to bundles that are only in the log are those of an open."""
    result, _ = dumped(fixture(name))
    with opened(fixture(name)) as store:
        refs = [(seq, index) for seq, count in store.segments() for index in range(count)]
        assert [saved.ref for saved in result.saved] == refs
        for saved in result.saved:
            if saved.ref[0] not in expected(name)["segments_on_disk"]:
                meta = store.meta(saved.ref)
                assert (meta.sequence, meta.ingestion_ts_ns) == (
                    saved.sequence,
                    saved.ingestion_ts_ns,
                )


def flips(image: Image, path: str, step: int) -> Iterator[tuple[int, Image]]:
    """Copies of an image, each with one byte of a file changed."""
    data = image[path]
    for at in range(0, len(data), step):
        changed = bytearray(data)
        changed[at] ^= 0x55
        yield at, {**image, path: bytes(changed)}


def check_damaged(name: str, result: Dump, out: Disk, where: object) -> None:
    """Saved and lost together are all there was; nothing that is saved is wrong."""
    wanted = still_there(name)
    by_sequence = {want["wal_sequence"]: want for want in wanted}
    doubles = result.maybe_doubled is not None
    found = [saved.sequence for saved in result.saved if saved.sequence is not None]
    assert doubles or len(set(found)) == len(found), where
    for saved in result.saved:
        want = by_sequence.get(saved.sequence) if saved.sequence is not None else None
        if want is not None and (want["segment"] is None or saved.ref[0] == want["segment"]):
            batches = batches_of(saved, out)
            for slot in want["slots"]:
                assert same_values(batches[slot["slot"]], wanted_batch(name, slot)), where
    unknown = any(lost.bundles is None for lost in result.lost)
    lost = sum(one.bundles or 0 for one in result.lost)
    if doubles or unknown:
        return
    # The last entry may have been torn by a crash, for all that anybody knows: reported.
    accounted = len(result.saved) + lost
    assert accounted == len(wanted) or (result.torn and accounted == len(wanted) - 1), where


@pytest.mark.parametrize(
    ("name", "path", "step"),
    [
        ("tiny-clean", "segments/0000000000000000.qseg", 29),
        ("tiny-clean", "wal/quiver.wal", 29),
        ("tiny-crashed", "segments/0000000000000000.qseg", 29),
        ("tiny-crashed", "wal/quiver.wal", 29),
        ("crashed", "wal/quiver.wal.1", 211),
        ("crashed", "wal/quiver.wal.3", 211),
        ("crashed", "segments/0000000000000001.qseg", 211),
        ("multislot", "segments/0000000000000003.qseg", 811),
    ],
)
def test_flipped_bytes(name: str, path: str, step: int) -> None:
    """Whatever byte is wrong: the dump says so, and saves everything else."""
    for at, image in flips(fixture(name), path, step):
        result, out = dumped(image)
        check_damaged(name, result, out, (path, at))
        if path.startswith("segments/"):
            assert not result.sound, (path, at)


@pytest.mark.parametrize("name", ["tiny-clean", "basic", "multislot", "dict"])
def test_a_damaged_segment_comes_out_of_the_log(name: str) -> None:
    """The log of a cleanly closed directory still has everything: nothing is lost."""
    image = fixture(name)
    for path in [path for path in image if path.endswith(".qseg")]:
        damaged = bytearray(image[path])
        damaged[len(damaged) // 2] ^= 1
        result, out = dumped({**image, path: bytes(damaged)})
        assert not result.sound
        assert sum(lost.bundles or 0 for lost in result.lost) == 0
        assert len(result.saved) == len(still_there(name))
        check_damaged(name, result, out, path)


def test_a_flip_in_the_log_costs_one_bundle() -> None:
    """In a rotated file, behind the cursor: the one entry is lost, those behind it aren't."""
    image = fixture("crashed")
    changed = bytearray(image["wal/quiver.wal.3"])
    changed[len(changed) // 2] ^= 1
    result, out = dumped({**image, "wal/quiver.wal.3": bytes(changed)})
    assert not result.sound
    assert [lost.bundles for lost in result.lost] == [1]
    assert len(result.saved) == 47
    check_damaged("crashed", result, out, None)


def test_progress_that_cannot_be_read() -> None:
    """A damaged progress file costs no bundle: all of its bundles are called pending."""
    image = fixture("basic")
    image["quiver.sub.exporter"] = image["quiver.sub.exporter"][:-1] + b"!"
    result, _ = dumped(image)
    assert not result.sound
    assert len(result.saved) == 32
    assert {saved.subscribers["exporter"] for saved in result.saved} == {"pending"}


def with_byte_count(data: bytes) -> bytes:
    """A segment as newer versions of the crate write it: the manifest has a nullable column
    ``byte_count``."""
    footer = decode_footer(data[-TAIL_SIZE:], len(data))
    start = footer.manifest_offset
    with pa.ipc.open_file(data[start : start + footer.manifest_length]) as reader:
        table = reader.read_all()
    counts = pa.array([None if row % 2 else 100 + row for row in range(len(table))], pa.uint64())
    sink = pa.BufferOutputStream()
    wider = table.append_column("byte_count", counts).combine_chunks()
    with pa.ipc.new_file(sink, wider.schema) as writer:
        writer.write_table(wider)
    manifest: bytes = sink.getvalue().to_pybytes()
    body = data[:start] + manifest
    footer = replace(footer, manifest_length=len(manifest))
    return body + footer.encode(crc32(body))


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_with_byte_counts(name: str) -> None:
    """Scenario: the segments have the column that the crate has added since. Guarantee: every
    bundle comes out as without it, by a dump and by an open, and no other size is believed."""
    plain = fixture(name)
    wider = {
        path: with_byte_count(data) if path.endswith(".qseg") else data
        for path, data in plain.items()
    }
    assert (wider != plain) == any(path.endswith(".qseg") for path in plain)
    results = [
        dump(Disk(MemoryDisk.from_image(image)), Disk(MemoryDisk())) for image in (plain, wider)
    ]
    assert results[0] == results[1]
    metas = []
    for image in (plain, wider):
        store = opened(image)
        metas.append(
            [
                (info.seq, info.bundle_count, info.rows, info.nbytes)
                for info in store._parts.segments.infos()
            ]
        )
        store.close()
    assert metas[0] == metas[1]
