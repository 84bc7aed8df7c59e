"""``quiver subscribe`` and ``quiver ack``: receive as a subscriber.

With ``--to`` the rows of many bundles go into one file per slot.  Bundles are acked,
durably, only after all files of their group are closed, fsynced and renamed.  A group's
files are named after its first bundle: if a crash comes between the rename and the ack,
the bundles are delivered again, the new group begins with the same bundle and its files
replace the old ones.  So nothing is lost and nothing is there twice.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from flight_service.cli.files import ENDINGS, OutputFile, format_of, sync_directory
from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    Stream,
    bar,
    out,
    page,
    print_json,
    read_ref,
    read_start,
    usage,
    with_client,
)
from flight_service.cli.show import print_bundle_json
from flight_service.client import Client, Delivered, Ref, Subscription
from quiver.units import parse_duration, parse_size

GROUP: Final = 512
"""Bundles in hand at most: below what a server lets one subscriber hold."""

HELP = f"""Receive a stream as a subscriber: what it has not finished yet, each bundle once.

With --to DIR the rows go into files, one per slot; a bundle is acked only after its file
is closed and on disk. Without, each bundle is a line of JSON on standard output, acked
once written. Ends when there is nothing left; --follow goes on for ever.

{EXAMPLES}

  quiver subscribe telemetry --as exporter --to out/
  quiver subscribe telemetry --as exporter --to out/ --follow --every 60s --format jsonl
  quiver subscribe telemetry --as debug --start latest --follow | jq .key
  quiver subscribe telemetry --as exporter --slot Logs --to logs/ --size 256MiB"""

ACK_HELP = f"""Finish bundles for a subscriber, by their refs, and return once that is on disk.

{EXAMPLES}

  quiver ack telemetry exporter 12.0 12.1
  quiver ack telemetry exporter 12.7 --reject "broken for good"
  quiver ack telemetry exporter 12.8 --defer 5m"""

As = Annotated[str, typer.Option("--as", metavar="NAME", help="The subscriber's name.")]
To = Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Write files into it.")]
Format = Annotated[str, typer.Option("--format", help="parquet, arrow, arrows, csv or jsonl.")]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for more, for ever.")]
Start = Annotated[
    str, typer.Option(help="Where a new one begins: earliest, latest, a ref or a time.")
]
Slots = Annotated[list[str] | None, typer.Option("--slot", help="Only these slots.")]
Size = Annotated[str, typer.Option("--size", help="Begin new files after so many bytes.")]
Every = Annotated[str, typer.Option("--every", help="… or after so long.")]
Limit = Annotated[int, typer.Option(min=0, help="End after so many bundles; 0: no limit.")]
Subscriber = Annotated[str, typer.Argument(metavar="SUBSCRIBER", help="For whom.")]
Refs = Annotated[list[str], typer.Argument(metavar="REF...", help="Which bundles.")]
RejectOption = Annotated[
    str | None, typer.Option("--reject", metavar="REASON", help="Drop them, on record, instead.")
]
DeferOption = Annotated[
    str | None, typer.Option("--defer", metavar="TIME", help="Deliver them again later, instead.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("subscribe", help=page(HELP), rich_help_panel=PANEL)(with_client(_subscribe))
    app.command("ack", help=page(ACK_HELP), rich_help_panel=PANEL)(with_client(_ack))


class FileGroup:
    """Bundles in hand, and the files their rows go into."""

    def __init__(self, directory: Path, form: str, size: int, seconds: float) -> None:
        self._directory = directory
        self._form = form
        self._size = size
        self._seconds = seconds
        self._bundles: list[Delivered] = []
        self._files: dict[str, OutputFile] = {}
        self._began = 0.0
        self.written: list[Path] = []
        self.rows = 0

    def __len__(self) -> int:
        return len(self._bundles)

    def fits(self, bundle: Delivered) -> bool:
        """Whether its slots have the schemas of the files that are open."""
        return all(
            slot not in self._files or self._files[slot].schema.equals(batch.schema)
            for slot, batch in bundle.items()
        )

    def add(self, bundle: Delivered) -> None:
        """Write a bundle's rows."""
        if not self._bundles:
            self._began = time.monotonic()
        self._bundles.append(bundle)
        for slot, batch in bundle.items():
            if slot not in self._files:
                self._files[slot] = OutputFile(self._path(slot), self._form, batch.schema)
            self._files[slot].write(batch)
            self.rows += batch.num_rows

    @property
    def time_left(self) -> float | None:
        """Seconds until the group is old enough; ``None`` while there is none."""
        if not self._bundles:
            return None
        return max(0.0, self._began + self._seconds - time.monotonic())

    @property
    def is_full(self) -> bool:
        """Whether it is time for new files."""
        if len(self._bundles) >= GROUP or self.time_left == 0.0:
            return True
        return any(file.nbytes >= self._size for file in self._files.values())

    def commit(self, subscription: Subscription) -> int:
        """Files first, then acks, both on disk; how many bundles."""
        count = len(self._bundles)
        if not count:
            return 0
        stale = set(self._directory.glob(f"*-{self._name()}{ENDINGS[self._form]}"))
        for file in self._files.values():
            file.commit()
            self.written.append(file.path)
        for path in stale - {file.path for file in self._files.values()}:
            path.unlink()  # of a group that was never acked, and was cut differently
        sync_directory(self._directory)
        for bundle in self._bundles:
            bundle.ack()
        subscription.flush(durable=True)
        self._bundles, self._files = [], {}
        return count

    def discard(self) -> None:
        """Neither files nor acks: everything comes again."""
        for file in self._files.values():
            file.discard()

    def _name(self) -> str:
        segment, index = self._bundles[0].ref
        return f"{segment:010}-{index:08}"

    def _path(self, slot: str) -> Path:
        return self._directory / f"{slot}-{self._name()}{ENDINGS[self._form]}"


def _subscribe(
    client: Client,
    stream: Stream,
    name: As,
    to: To = None,
    form: Format = "parquet",
    follow: Follow = False,
    start: Start = "earliest",
    slot: Slots = None,
    size: Size = "128MiB",
    every: Every = "30s",
    limit: Limit = 0,
    as_json: AsJson = False,
) -> int:
    format_of("", form)
    try:
        nbytes, seconds = parse_size(size), parse_duration(every)
    except ValueError as error:
        raise usage(str(error)) from None
    subscription = client.stream(stream).subscribe(
        name, read_start(start), follow=follow, slots=slot
    )
    with subscription:
        if to is None:
            return _print(subscription, limit)
        to.mkdir(parents=True, exist_ok=True)
        group = FileGroup(to, form, nbytes, seconds)
        return _save(subscription, group, limit, follow, as_json)


def _print(subscription: Subscription, limit: int) -> int:
    for count, bundle in enumerate(subscription, start=1):
        print_bundle_json(bundle)
        bundle.ack()
        if count == limit:
            break
    subscription.flush(durable=True)
    return 0


class Interrupts:
    """Ctrl-C, but only while waiting for a bundle.

    Anywhere else it is noted and comes with the next wait: a bundle that is half in a file
    must neither be acked nor have its rows there twice.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._asked = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold Ctrl-C back; the handler of before is put in place again."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextlib.contextmanager
    def welcome(self) -> Iterator[None]:
        """Here it may come."""
        self._waiting = True
        try:
            if self._asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def _interrupt(self, number: int, frame: object) -> None:
        self._asked = True
        if self._waiting:
            raise KeyboardInterrupt


def _save(
    subscription: Subscription, group: FileGroup, limit: int, follow: bool, as_json: bool
) -> int:
    interrupts = Interrupts()
    with interrupts.held():
        saved = _save_all(subscription, group, limit, follow, as_json, interrupts)
    _report(group, saved, as_json)
    return 0


def _save_all(
    subscription: Subscription,
    group: FileGroup,
    limit: int,
    follow: bool,
    as_json: bool,
    interrupts: Interrupts,
) -> int:
    saved = 0
    try:
        with bar(quiet=as_json) as progress:
            task = progress.add_task("bundles", total=limit or None)
            while not limit or saved + len(group) < limit:
                with interrupts.welcome():
                    bundle = subscription.next_bundle(group.time_left if follow else None)
                if bundle is not None:
                    if not group.fits(bundle):
                        saved += group.commit(subscription)
                    group.add(bundle)
                elif not follow:
                    break
                if group.is_full:
                    saved += group.commit(subscription)
                progress.update(task, completed=saved)
            saved += group.commit(subscription)
    except KeyboardInterrupt:
        saved += group.commit(subscription)
    except BaseException:
        group.discard()
        raise
    return saved


def _report(group: FileGroup, saved: int, as_json: bool) -> None:
    files = [str(path) for path in group.written]
    if as_json:
        print_json({"bundles": saved, "rows": group.rows, "files": files})
        return
    text = f"{saved:,} bundles, {group.rows:,} rows in {len(files):,} files, all acked"
    out.print(text, soft_wrap=True)


def _ack(
    client: Client,
    stream: Stream,
    subscriber: Subscriber,
    refs: Refs,
    reject: RejectOption = None,
    defer: DeferOption = None,
    as_json: AsJson = False,
) -> int:
    if reject is not None and defer is not None:
        raise usage("--reject or --defer, not both.")
    target = client.stream(stream)
    wanted: list[Ref] = [read_ref(one) for one in refs]
    if reject is not None:
        outcome, word = target.reject(subscriber, wanted, reject), "rejected"
    elif defer is not None:
        outcome, word = target.defer(subscriber, wanted, _seconds(defer)), "deferred"
    else:
        outcome, word = target.ack(subscriber, wanted, durable=True), "acked"
    problems: dict[str, Any] = {str(one.ref): one.outcome for one in outcome.problems}
    if as_json:
        print_json({"taken": outcome.taken, "problems": problems})
    else:
        out.print(f"{outcome.taken:,} {word}")
        for ref, what in problems.items():
            out.print(f"  {ref}: {what}", markup=False)
    return 1 if problems else 0


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise usage(str(error)) from None
