"""The tables of ``docs/operations.md``, made from the code they are about.

``python -m docs.generate`` writes them between their markers; tests hold the page to it, and
every error code the code knows to a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from flight_service.protocol.errors import RETRYABLE_CODES, error_class
from flight_service.server.settings import service_settings
from quiver import errors, metrics
from quiver.config import Setting
from quiver.config import settings as store_settings
from quiver.errors import Fault, QuiverError

PAGE: Final = Path(__file__).with_name("operations.md")


class Advice(NamedTuple):
    """One row of the table of errors, as far as people have to write it."""

    meaning: str
    todo: str
    fault: Fault | None = None
    """Only for codes the library doesn't know: its own errors say whose fault they are."""


_DUMP: Final = "`quiver verify`, `quiver dump`, then `quiver repair`: [see](#a-damaged-stream)."
_SET_ASIDE: Final = (
    "It was rebuilt from the log, or set aside and its loss recorded. Look at `quiver status`."
)

ADVICE: Final[Mapping[str, Advice]] = {
    # The request
    "bad_request": Advice(
        "A descriptor, ticket or action body breaks the protocol.",
        "Mend the client; the message names the field.",
        Fault.CALLER,
    ),
    "unknown_action": Advice("There is no such action.", "`ListActions` names them.", Fault.CALLER),
    "invalid_input": Advice("Something that can't be taken.", "The message says what."),
    "invalid_name": Advice(
        "A name breaks the rules.", "1 to 64 of `A-Z a-z 0-9 _ -`; not another name's twin by case."
    ),
    "invalid_bundle": Advice(
        "Not a bundle: unknown slot, broken array, bad attribute.", "Mend the producer."
    ),
    "limit_exceeded": Advice(
        "A named limit is passed; `details` name it.",
        "Send less, or raise the setting of that name.",
    ),
    "key_conflict": Advice(
        "A key came back with other content.",
        "The producer makes keys that don't name their content, or its retries differ.",
    ),
    "forked": Advice(
        "A forked child used a store, or a client, that its parent opened.",
        "Open in the child, or start it with `spawn`; processes share data through a server.",
    ),
    "schema_changes": Advice(
        "One slot-mode ticket over bundles of several schemas.",
        "Use the endpoints of GetFlightInfo, or bundle mode.",
        Fault.CALLER,
    ),
    "slot_not_in_bundle": Advice("The bundle has no such slot.", "Ask for one it has."),
    "unknown_slot": Advice("No recent bundle has this slot.", "Check the name.", Fault.CALLER),
    # Who and what
    "unauthenticated": Advice(
        "No token, or one that isn't known.", "Check the token and `auth.file`.", Fault.CALLER
    ),
    "forbidden": Advice(
        "Known, but not allowed; `details` name verb and stream.",
        "Grant the verb in `auth.file`.",
        Fault.OPERATOR,
    ),
    "not_found": Advice("It isn't here.", "Check the name or path."),
    "unknown_stream": Advice(
        "No such stream.", "`quiver streams`; or is `server.auto_create` off?", Fault.CALLER
    ),
    "stream_exists": Advice(
        "`create_stream` met one of that name.", "Say `if_not_exists`.", Fault.CALLER
    ),
    "not_drained": Advice(
        "A stream to be deleted has unfinished subscribers.",
        "Let them finish, or `--force`.",
        Fault.CALLER,
    ),
    "unknown_subscriber": Advice("No such subscriber.", "Register it first."),
    "unknown_bundle": Advice("This ref was never given out.", "Check stream and ref."),
    "stage_not_found": Advice(
        "No finished attempt of that name: never finished, aborted, expired, or damaged.",
        "Write it again under a new attempt name, then commit that.",
    ),
    "bundle_gone": Advice(
        "It was here; `outcome` says what became of it.",
        "Nothing, or keep more: `retention.keep_after_finish`.",
    ),
    "expired": Advice(
        "The lease behind a claim or ticket has ended.",
        "Claim again; renew in time, or raise `delivery.lease`.",
        Fault.CALLER,
    ),
    "blocked": Advice(
        "A subscriber stopped at poison, as its policy says.",
        "Ack or reject the bundle, or seek: [see](#a-subscriber-that-stands-still).",
        Fault.OPERATOR,
    ),
    # Staged writes
    "stage_incomplete": Advice(
        "`finish_stage` counts other bundles than the stage holds.",
        "A message was lost: write the attempt again under another name.",
        Fault.CALLER,
    ),
    "stage_ended": Advice(
        "The attempt was aborted, or its transaction committed without it.",
        "Nothing: another attempt won. Else write it again.",
        Fault.CALLER,
    ),
    "already_committed": Advice(
        "Staging for a transaction that is committed.",
        "Nothing: its rows are there. A new write needs a new version.",
        Fault.CALLER,
    ),
    # Not now
    "backpressure": Advice(
        "No room for now; `reason` says where, `retry_after_ms` when.",
        "Clients wait and retry. If it lasts: [see](#puts-have-to-wait).",
    ),
    "storage_full": Advice("The file system is full.", "Make room: [see](#a-full-disk)."),
    "out_of_resources": Advice(
        "The process has no file descriptor left, or the kernel no memory, to open a file.",
        "Clients retry. If it lasts: [see](#few-file-descriptors).",
    ),
    "busy": Advice("It can be had, but not now.", "Retry after `retry_after_ms`."),
    "too_many_calls": Advice(
        "A cap on calls is reached.",
        "Retry. If it lasts: a client that leaks calls, or `calls.max_calls`.",
        Fault.LOAD,
    ),
    "recovering": Advice("The server is still starting.", "Retry.", Fault.LOAD),
    "draining": Advice("The server is stopping.", "Retry: its successor answers.", Fault.LOAD),
    "unavailable": Advice(
        "Nobody answered, or the connection broke: said by the client.",
        "Retry with keys; check address, port and TLS.",
        Fault.LOAD,
    ),
    "timeout": Advice("A wait ended first.", "Wait longer; what was put may still become durable."),
    "cancelled": Advice("The caller gave up.", "Nothing.", Fault.CALLER),
    "out_of_turn": Advice(
        "An earlier bundle of this DoPut, or the one before in `put(after=…)`, has to come first.",
        "Resend from that one on; our client does.",
    ),
    "store_locked": Advice(
        "Another process writes to this directory; the message names it.",
        "Stop that one. One server per root.",
    ),
    "store_closed": Advice("This store has been closed.", "Open it again."),
    # Configuration
    "invalid_config": Advice(
        "A setting is wrong, unknown or contradicts another.",
        "The message names setting, value and what is allowed.",
    ),
    "layout_mismatch": Advice(
        "The log was written with another slot table.", "Put `slots` back as it was."
    ),
    "unsupported_version": Advice(
        "A file of a newer Quiver.", "Run that version. There is no way down."
    ),
    # The disk
    "poisoned": Advice(
        "An fsync failed: nothing more is written until a restart.",
        "Find out why, then restart: [see](#a-poisoned-stream).",
    ),
    "io_fault": Advice("A read or write failed.", "Look at the kernel's log; replace the disk."),
    "storage_fault": Advice("The disk failed.", "As for `io_fault`."),
    "damaged": Advice("Bytes on disk are not what was written.", _DUMP),
    "wal_corrupt": Advice("A log entry that was synced is bad, or a log file is missing.", _DUMP),
    "state_corrupt": Advice("Checkpoint, floor or `service.json` is bad or missing.", _DUMP),
    "progress_corrupt": Advice(
        "A subscriber's progress is bad or missing.",
        "Restore it, or choose with `subscribers.corrupt_progress` where it starts again.",
    ),
    "stream_damaged": Advice(
        "This stream can't be opened; `cause` is the code of why. Others are served.",
        _DUMP,
        Fault.STORAGE,
    ),
    "segment_damaged": Advice("A segment file is bad.", _SET_ASIDE),
    "segment_truncated": Advice("… shorter than it says.", _SET_ASIDE),
    "segment_bad_magic": Advice("… no segment at all.", _SET_ASIDE),
    "segment_checksum": Advice("… its checksum disagrees.", _SET_ASIDE),
    "segment_invalid_ipc": Advice("… Arrow can't read a part of it.", _SET_ASIDE),
    "stream_not_found": Advice("… its tables don't fit together.", _SET_ASIDE),
    # The unforeseen
    "internal": Advice(
        "A defect. The answer has an `incident`; the server's log has the rest under it.",
        "Find it in the log and report it.",
        Fault.STORAGE,
    ),
    "error": Advice("The root of all errors; nothing has this code itself.", "Report it."),
}


def library_errors() -> dict[str, type[QuiverError]]:
    """Every error of the library, by code."""
    return {
        one.code: one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, QuiverError)
    }


def error_table() -> str:
    """Every code: what it means, whose fault it is, whether to try again, what to do."""
    known = library_errors()
    rows = []
    for code, advice in ADVICE.items():
        fault = known[code].fault if code in known else advice.fault
        retry = known[code].retryable if code in known else code in RETRYABLE_CODES
        kind = error_class(code).__name__.removeprefix("Flight").removesuffix("Error")
        rows.append(
            (f"`{code}`", advice.meaning, str(fault), "yes" if retry else "no", kind, advice.todo)
        )
    return _table(("code", "meaning", "fault", "retry", "Flight error", "what to do"), rows)


def server_table() -> str:
    """The service's own settings."""
    return _settings(service_settings())


def store_table() -> str:
    """The store's settings, which are the defaults of every stream."""
    return _settings(store_settings())


def metrics_table() -> str:
    """The store's metrics as Prometheus sees them."""
    rows = []
    for one in metrics.ALL:
        name = one.name.replace(".", "_")
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append((f"`{name}`", str(one.kind), labels, one.description))
    return _table(("metric", "kind", "labels besides `stream`", "what it counts"), rows)


def _settings(rows: Iterable[Setting]) -> str:
    return _table(
        ("setting", "value", "default", "what it is"),
        ((f"`{one.name}`", one.type, f"`{one.default}`", one.description) for one in rows),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "server settings": server_table,
    "store settings": store_table,
    "metrics": metrics_table,
    "errors": error_table,
}


def update(page: str) -> str:
    """A page with its tables brought up to date."""
    for name, make in TABLES.items():
        begin, end = f"<!-- begin: {name} (python -m docs.generate) -->", f"<!-- end: {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for the table {name!r}")
        page = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text()))
