"""The idempotency window: what it remembers, and how it is written again and again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver.format.keys import STRETCH, KeyRecord, WindowEncoder, decode_window
from quiver.ids import BundleRef
from quiver.window import KeyWindow

AGE = 100

waits = st.sampled_from([0, 0, 30, 60, AGE + 1])
puts = st.tuples(st.sampled_from(["put", "replay"]), st.integers(0, 5), waits)
undo = st.tuples(st.just("undo"), st.integers(0, 3), st.just(0))
written = st.tuples(st.just("written"), st.integers(0, 5), st.just(0))
histories = st.lists(st.one_of(puts, puts, puts, undo, written), max_size=60)


def record(key: int, sequence: int, ts: int) -> KeyRecord:
    return KeyRecord(f"k{key}", bytes([key]) * 32, BundleRef(sequence // 7, key), sequence, ts)


class Plain:
    """What the window should remember, the slow way: every record in order, looked through."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.records: list[KeyRecord] = []

    def add(self, new: KeyRecord) -> None:
        kept = [one for one in self.records if one.key != new.key]
        self.records = [one for one in [*kept, new] if new.ts_ns - one.ts_ns <= AGE][-self.most :]

    def forget_from(self, sequence: int) -> None:
        self.records = [one for one in self.records if one.sequence < sequence]


@given(histories, st.integers(1, 6), st.sampled_from([1, 1500]))
def test_the_window_remembers_what_it_should(
    history: list[tuple[str, int, int]], most: int, stride: int
) -> None:
    """Scenario: keys come, come again when they have expired, are taken back when their group
    could not be written; now and then a checkpoint is written of what is durable. A log that
    is replayed under a longer window than it was written has a key twice. Guarantee: a key is
    known exactly as long as it should be, and every checkpoint holds those keys."""
    window, plain, encoder = KeyWindow(most, AGE), Plain(most), WindowEncoder()
    now, sequence, durable = 0, 0, 0
    for step, number, wait in history:
        if step in ("put", "replay"):
            now += wait
            new = record(number, sequence, now)
            known = window.find(new.key, new.content_hash, now)
            if known is None or step == "replay":
                window.add(new)
                plain.add(new)
                sequence += stride
        elif step == "undo":
            sequence = max(durable, sequence - number * stride)
            window.forget_from(sequence)
            plain.forget_from(sequence)
        else:
            durable = max(durable, sequence - number * stride)
            expected = tuple(one for one in plain.records if one.sequence < durable)
            assert window.snapshot(durable) == expected
            assert decode_window(encoder.encode(expected)) == expected
        assert len(window) == len(plain.records)
        for one in plain.records:
            assert window.find(one.key, one.content_hash, one.ts_ns) is one


def test_only_what_is_new_is_encoded_again() -> None:
    """Scenario: a full window is written after a few more keys. Guarantee: the stretches
    between its ends are the very bytes of before."""
    encoder = WindowEncoder()
    records = [record(n % 200, n, n) for n in range(4 * STRETCH)]
    encoder.encode(records)
    before = {number: one.message for number, one in encoder._known.items()}
    more = [record(1, 4 * STRETCH + n, n) for n in range(3)]
    kept = [*records[3:], *more]
    assert decode_window(encoder.encode(kept)) == tuple(kept)
    after = {number: one.message for number, one in encoder._known.items()}
    assert [number for number in before if after[number] is before[number]] == [1, 2, 3]
