"""Reading a log back: all of its files, in order, every byte checked, nothing changed.

What a stop in a file means is decided here, by this table:

===========================  ==================  ===================================
the entries stop at …        in a rotated file,  in the last file, and …
                             or one with a
                             successor
===========================  ==================  ===================================
the end, zeros, an old lap¹  fine if the next    a later entry proves the expected
                             file begins with    one synced: damage; else the end, torn
                             the expected entry  if not even the terminator is there
anything else                damage              a later entry proves it: damage;
                                                 else a torn tail
nothing: no active file and  damage
none ready to take its name
===========================  ==================  ===================================

¹ A sound entry with an older sequence, in a recycled file of version 1.  In version 2 each
file has its own salt, so bytes of an earlier lap are not sound and count as *anything else*.
For the same reason "a later entry" is always one that was written to this very file, never a
payload that looks like one.

An entry of an unknown type, a bundle with an unknown tag below 128, a head with flags or of
a newer version: ``UnsupportedVersion``.  What this version can't read may change the meaning of
what it can.  Asked to salvage, it lists them, passes over the file, or the rest of it, and reads
the others.

A gap in the sequences between two files is no damage where the checkpoint says that none of
them were given out.

Damage means that something once called durable is gone: :func:`read_log` refuses, unless
it is asked to salvage.  A torn tail was never called durable: it is reported, and
:mod:`quiver.wal.repair` cuts it off.

Logs of the Rust crate prove nothing about syncing, and neither their sequences nor their
positions need go on from file to file.  There a bad entry is a torn tail, unless a later
file begins with a higher sequence: then the crate had gone on past it.  Sound entries that
follow a bad one in the same file prove nothing, but they are there, and are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quiver.disk.disk import Disk, File
from quiver.errors import LayoutMismatch, UnsupportedVersion, WalCorrupt
from quiver.format.wal.entry import FOREIGN_FRAMING, V1_FRAMING
from quiver.format.wal.header import (
    FOREIGN_HEADER_SIZE,
    FOREIGN_LAYOUT,
    HASH_SIZE,
    HEADER_SIZE,
    WalHeader,
    check_layout,
    decode_header,
)
from quiver.format.wal.scan import TERMINATOR
from quiver.wal.contents import (
    LogContents,
    LogDamage,
    TornTail,
    Visit,
    entries_of,
)
from quiver.wal.files import ACTIVE, DIRECTORY, NEW, SPARE, LogFile, LogName, SequenceRun, log_names
from quiver.wal.scan import Ending, FileScan

Gaps = Sequence[tuple[int, int]]

HOLE_SEARCH: Final = 1024 * 1024
"""How far behind a seemingly clean end to look for proof that it is a hole.

Sectors can be lost exactly at an entry's beginning; entries behind such a hole are near.
"""


def read_log(
    disk: Disk,
    *,
    layout_hash: bytes | None,
    visit: Visit | None = None,
    salvage: bool = False,
    gaps: Gaps = (),
) -> LogContents:
    """Read and check the whole log; ``visit`` gets each sound entry on the way, in order.

    ``layout_hash`` of ``None`` takes a log with any slot table, for tools that only look.
    With ``salvage`` damage is listed instead of raised, and reading goes on behind it; so is
    what a newer version wrote.  ``gaps`` are sequences that were never given out, half open.
    """
    log = _Log(disk, layout_hash, visit, salvage, gaps)
    log.read()
    if log.damage and not salvage:
        raise log.refusal()
    return log.contents()


def behind_gaps(sequence: int, gaps: Gaps) -> int:
    """The first sequence from this one on that is in no gap."""
    for first, end in sorted(gaps):
        if first <= sequence < end:
            sequence = end
    return sequence


class _Log:
    def __init__(
        self,
        disk: Disk,
        layout_hash: bytes | None,
        visit: Visit | None,
        salvage: bool,
        gaps: Gaps,
    ) -> None:
        self._disk = disk
        self._layout_hash = layout_hash
        self._visit = visit
        self._salvage = salvage
        self._gaps = gaps
        self._newer: list[UnsupportedVersion] = []
        self._skipped: set[int] = set()
        """Files whose head only a newer version can read."""
        self._names: list[LogName] = []
        self._headers: list[WalHeader | None] = []
        self._files: list[LogFile] = []
        self._torn: list[TornTail] = []
        self.damage: list[LogDamage] = []
        self._sound_before_damage = 0
        self._expected: int | None = None  # in files of ours: the next file's first
        self._highest = -1
        self._proven_end = 0
        self._last_ts = 0

    # The log

    def read(self) -> None:
        self._names = log_names(self._disk)
        for index, name in enumerate(self._names):
            try:
                self._headers.append(self._read_header(name))
            except UnsupportedVersion as error:
                self._note_newer(error)
                self._headers.append(None)
                self._skipped.add(index)
        complete = self._find_active()
        for index, (name, header) in enumerate(zip(self._names, self._headers, strict=True)):
            if index in self._skipped:
                self._expected = None  # where it ends is not known
                continue
            with self._disk.open(name.path) as file:
                if header is None:
                    self._without_header(index, file)
                else:
                    self._read_file(index, file, header)
        if not complete:
            reason = "the active file is missing"
            self._note_damage(LogDamage(ACTIVE, 0, self._expected or 0, None, reason))

    def _note_newer(self, error: UnsupportedVersion) -> None:
        if not self._salvage:
            raise error
        self._newer.append(error)

    def _find_active(self) -> bool:
        """Whether the last file is there; after a rotation that was cut short, the prepared one.

        A log of ours always has an active file, or a whole one that was about to take its
        place.  A spare of an earlier lap is no such thing: it begins before the others.
        """
        if not self._names or self._names[-1].number is None:
            return True
        last = self._headers[-1]
        if last is None or last.first_sequence is None:
            return True  # damaged, or of the Rust crate, where anything may be missing
        there = self._disk.listdir(DIRECTORY)
        for path in (NEW, SPARE):
            if path.rpartition("/")[2] not in there:
                continue
            name = LogName(path, None)
            try:
                header = self._read_header(name)
            except UnsupportedVersion as error:
                self._note_newer(error)
                return True
            first = None if header is None else header.first_sequence
            if first is not None and first >= last.first_sequence:
                self._names.append(name)
                self._headers.append(header)
                return True
        return False

    def _read_header(self, name: LogName) -> WalHeader | None:
        with self._disk.open(name.path) as file:
            data, size = file.pread(HEADER_SIZE, 0), file.size()
        try:
            header = decode_header(data)
            if self._layout_hash is not None:
                check_layout(header, self._layout_hash)
        except WalCorrupt:
            return None
        except (UnsupportedVersion, LayoutMismatch) as error:
            error.message = f"{name.path}: {error.message}"
            error.details["file"] = name.path
            raise
        return header if header.size <= size else None

    def _has_foreign_entries(self, path: str) -> bool:
        with self._disk.open(path) as file:
            scan = FileScan(file, file.size(), FOREIGN_HEADER_SIZE, None, FOREIGN_FRAMING)
            return any(True for _ in scan.pieces())

    def _without_header(self, index: int, file: File) -> None:
        """A head is synced before the file gets its name, except by the Rust crate."""
        path, size = self._names[index].path, file.size()
        head = file.pread(FOREIGN_HEADER_SIZE, 0)
        unfinished = len(head) < FOREIGN_HEADER_SIZE or not head.strip(b"\0")
        ours = any(header is not None and not header.foreign for header in self._headers)
        expected = self._expected or 0
        if unfinished and not ours and index == len(self._names) - 1:
            reason = "the file has no complete head"
            self._torn.append(TornTail(path, 0, size, expected, reason))
            return
        reason = "the head of the file is damaged"
        if not ours and (any(self._headers) or self._has_foreign_entries(path)):
            header = self._likely_header(index, size)
            scan = FileScan(file, size, header.size, None, FOREIGN_FRAMING)
            self._damaged(index, scan, reason)
            self._resumed_at(0)
            self._scan_file(index, scan, header)
            return
        guess = FileScan(file, size, 0, expected, V1_FRAMING)
        framing = guess.derived_framing(file.pread(HEADER_SIZE, 0)) or V1_FRAMING
        scan = FileScan(file, size, 0, expected, framing)
        self._damaged(index, scan, reason)
        if scan.resync(expected - 1):
            self._resumed_at(scan.expected)
            self._scan_file(index, scan, WalHeader(bytes(HASH_SIZE), 0, None, framing))

    def _likely_header(self, index: int, size: int) -> WalHeader:
        """What the Rust crate must have written, going by the files around it."""
        position = 0
        following = self._headers[index + 1] if index + 1 < len(self._headers) else None
        if self._files:
            position = self._files[-1].position_end
        elif following is not None:
            position = max(0, following.position_start - (size - FOREIGN_HEADER_SIZE))
        size = FOREIGN_HEADER_SIZE
        return WalHeader(FOREIGN_LAYOUT, position, None, FOREIGN_FRAMING, size=size)

    def _read_file(self, index: int, file: File, header: WalHeader) -> None:
        first = header.first_sequence
        scan = FileScan(file, file.size(), header.size, first, header.framing)
        expected = self._expected
        if (
            first is not None
            and expected not in (None, first)
            and not self._explained(first)
            and not self._never_used(expected or 0, first)
        ):
            self._gap(index, first)
        self._scan_file(index, scan, header)

    def _explained(self, first: int) -> bool:
        """Whether the damage noted last ends where this file begins."""
        return bool(self.damage) and self.damage[-1].until == first

    def _never_used(self, first: int, end: int) -> bool:
        """Whether no sequence of this range was ever given out."""
        return first < end and behind_gaps(first, self._gaps) >= end

    def _gap(self, index: int, first: int) -> None:
        expected = self._expected or 0
        self._note_damage(
            LogDamage(
                self._names[index].path,
                0,
                expected,
                first,
                "the file before it is missing or lacks its last entries"
                if first > expected
                else "the file repeats entries of the one before it",
            )
        )

    # One file

    def _scan_file(self, index: int, scan: FileScan, header: WalHeader) -> None:
        runs = []
        is_read = True
        while True:
            start, first = scan.offset, scan.expected
            try:
                self._scan_run(index, scan, header)
            except UnsupportedVersion as error:
                self._note_newer(error)
                is_read = False
            if scan.offset > start:
                runs.append(SequenceRun(start, scan.offset, None if scan.foreign else first))
            if not is_read or not self._goes_on(index, scan):
                break
        self._finish(index, scan, header, tuple(runs))
        if not is_read:
            self._expected = None

    def _scan_run(self, index: int, scan: FileScan, header: WalHeader) -> None:
        visit = self._visit
        path, shift = self._names[index].path, header.position_start - header.size
        for piece in scan.pieces():
            if visit is not None:
                for entry in entries_of(path, shift, piece, scan.framing):
                    visit(entry)

    def _goes_on(self, index: int, scan: FileScan) -> bool:
        """Decide what the stop means; whether there is more to read behind it."""
        reason = self._damage_at_stop(index, scan)
        if reason is not None:
            self._damaged(index, scan, reason)
            if self._resync(scan):
                self._resumed_at(scan.expected)
                return True
            self._resumed_at(self._own_start_after(index))
            return False
        path = self._names[index].path
        if scan.ending is Ending.BAD and scan.foreign:
            offset, expected, reason = scan.offset, scan.expected, "an entry is damaged or torn"
            if self._resync(scan):
                length, until = scan.offset - offset, scan.expected
                self._torn.append(TornTail(path, offset, length, expected, reason, until))
                return True
        if scan.ending is Ending.BAD:
            length, reason = scan.size - scan.offset, "the last write is incomplete"
            self._torn.append(TornTail(path, scan.offset, length, scan.expected, reason))
        elif self._lacks_terminator(index, scan):
            reason = "the file ends without a terminator"
            self._torn.append(TornTail(path, scan.size, 0, scan.expected, reason))
        return False

    def _resync(self, scan: FileScan) -> bool:
        """Go to the next sound entry behind a bad one; whether there is one."""
        if not scan.foreign:
            return scan.resync(scan.expected)
        if scan.entries:
            return scan.resync(scan.expected - 1)
        # The file's first entry is bad: nobody knows where its sequence stood.
        claimed = self._claimed(scan)
        return scan.resync(self._highest, -1, *(() if claimed is None else (claimed,)))

    def _lacks_terminator(self, index: int, scan: FileScan) -> bool:
        """Whether the log's end may have been cut off, between two entries.

        Every group comes with a terminator behind it; only a clean close leaves none.
        """
        if scan.foreign or scan.sealed or self._names[index].number is not None:
            return False
        return scan.ending is not Ending.OLD and scan.size < scan.offset + len(TERMINATOR)

    def _damage_at_stop(self, index: int, scan: FileScan) -> str | None:
        if scan.foreign:
            return self._foreign_damage(index, scan)
        rotated = self._names[index].number is not None
        if scan.ending is Ending.BAD:
            if rotated or index + 1 < len(self._names) or scan.has_proof():
                return "an entry that was synced fails its checksum"
            return None
        following = self._own_start_after(index)
        if following is not None and following > scan.expected:
            if self._never_used(scan.expected, following):
                return None
            return "entries that were synced are missing"
        at_end = following is not None or scan.ending is Ending.EOF
        if not at_end and scan.has_proof(within=HOLE_SEARCH):
            return "entries that were synced are missing"
        return None

    def _foreign_damage(self, index: int, scan: FileScan) -> str | None:
        if scan.ending is not Ending.BAD:
            return None
        expected = scan.expected if scan.entries else self._claimed(scan)
        following = self._foreign_start_after(index)
        if following is not None and expected is not None and following > expected:
            scan.expected = expected
            return "an entry that a later file has gone past fails its checksum"
        return None

    def _claimed(self, scan: FileScan) -> int | None:
        """The sequence a file's first, bad entry gives itself: the best there is."""
        head = scan.file.pread(21, scan.offset)
        return int.from_bytes(head[13:21], "little") if len(head) == 21 else None

    def _own_start_after(self, index: int) -> int | None:
        following = self._headers[index + 1 : index + 2]
        return following[0].first_sequence if following and following[0] is not None else None

    def _foreign_start_after(self, index: int) -> int | None:
        """The sequence of the first entry in any later file."""
        for name, header in zip(self._names[index + 1 :], self._headers[index + 1 :], strict=True):
            if header is None:
                continue
            if header.first_sequence is not None:
                return header.first_sequence
            with self._disk.open(name.path) as file:
                first = FileScan(file, file.size(), header.size, None, FOREIGN_FRAMING)
                for piece in first.pieces():
                    return piece.found[0][3]
        return None

    def _finish(
        self, index: int, scan: FileScan, header: WalHeader, runs: tuple[SequenceRun, ...]
    ) -> None:
        name = self._names[index]
        self._files.append(
            LogFile(
                path=name.path,
                number=name.number,
                header=header,
                size=scan.size,
                end=scan.offset,
                runs=runs,
                next_sequence=scan.expected,
                last_segment=scan.last_segment,
                entries=scan.entries,
                bundles=scan.bundles,
                sealed=scan.sealed and scan.ending is not Ending.BAD,
            )
        )
        self._last_ts = max(self._last_ts, scan.last_ts)
        if scan.foreign:
            self._highest = max(self._highest, scan.highest)
            self._expected = None
            self._proven_end = header.size
        else:
            self._highest = max(self._highest, scan.expected - 1)
            self._expected = scan.expected
            self._proven_end = scan.offset if name.number is not None else scan.proven_end()

    # Damage

    def _damaged(self, index: int, scan: FileScan, reason: str) -> None:
        path = self._names[index].path
        self._note_damage(LogDamage(path, scan.offset, scan.expected, None, reason), scan)

    def _note_damage(self, damage: LogDamage, scan: FileScan | None = None) -> None:
        if not self.damage:
            self._sound_before_damage = self._bundles() + (scan.bundles if scan else 0)
        self.damage.append(damage)

    def _resumed_at(self, sequence: int | None) -> None:
        """Say where the damage noted last comes to an end."""
        self.damage[-1] = replace(self.damage[-1], until=sequence)

    def _bundles(self) -> int:
        return sum(file.bundles for file in self._files)

    def refusal(self) -> WalCorrupt:
        """The error for a damaged log: where, what, and what can be done about it."""
        first = self.damage[0]
        before = self._sound_before_damage
        after = self._bundles() - before
        return WalCorrupt(
            f"the log is damaged at {first.file} byte {first.offset:,}: {first.reason} "
            f"(sequence {first.sequence:,}).",
            advice=(
                f"Nothing was changed. {before:,} bundles before it and {after:,} after it "
                "are sound. See them: quiver verify DIR. Save them: quiver dump DIR --out OUT. "
                "Go on without it: quiver repair DIR."
            ),
            file=first.file,
            offset=first.offset,
            sequence=first.sequence,
            sound_before=before,
            sound_after=after,
        )

    def contents(self) -> LogContents:
        return LogContents(
            disk=self._disk,
            files=tuple(self._files),
            torn_tails=tuple(self._torn),
            damage=tuple(self.damage),
            next_sequence=self._highest + 1,
            position=max((file.position_end for file in self._files), default=0),
            proven_end=self._proven_end,
            last_ts_ns=self._last_ts,
            newer=tuple(self._newer),
        )
