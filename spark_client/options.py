"""Every option, in one table: its name, where it counts, what it takes, what it does.

Spark hands options over as text under lower-case names.  They are read strictly: a name
that isn't known, or that means nothing for this kind of use, is refused together with the
nearest right one, so a slip never passes for a default.  Sizes and times are written as
people do (``64MiB``, ``30s``).  ``docs/spark.md`` shows this table; a test holds it to that.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flight_service.client.errors import BadRequest
from flight_service.client.retry import Retry
from spark_client.credentials import Credentials
from spark_client.kinds import OptionKind, choice, duration, flag, size, text, whole, words
from spark_client.url import Target

PUT: Final = "put"
READ: Final = "read"
READ_STREAM: Final = "readStream"
WRITE: Final = "write"
WRITE_STREAM: Final = "writeStream"

ALL: Final = frozenset({PUT, READ, READ_STREAM, WRITE, WRITE_STREAM})
READS: Final = frozenset({READ, READ_STREAM})
WRITES: Final = frozenset({WRITE, WRITE_STREAM})
PUTS: Final = frozenset({PUT}) | WRITES

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema"})
"""Options of Spark itself, which it hands on to every source and sink."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    kind: OptionKind
    default: str | None
    uses: frozenset[str]
    help: str
    secret: bool = False
    aliases: tuple[str, ...] = ()


TABLE: Final[tuple[Option, ...]] = (
    # Where, and as whom
    Option(
        "url",
        text(),
        None,
        ALL,
        "The stream: `quiver://host:port/stream`, or `quiver+tls://` (`load(url)` and"
        " `start(url)` say the same).",
        aliases=("path",),
    ),
    Option("token", text(), None, ALL, "A token; or `QUIVER_TOKEN`.", secret=True),
    Option(
        "tokenFile",
        text(),
        None,
        ALL,
        "A file that holds the token; or `QUIVER_TOKEN_FILE`. Read again where it is.",
    ),
    Option("tlsCa", text(), None, ALL, "TLS: trust servers these have signed; or `QUIVER_CA`."),
    Option("tlsCert", text(), None, ALL, "TLS: our certificate; or `QUIVER_CERT`."),
    Option("tlsKey", text(), None, ALL, "TLS: its private key; or `QUIVER_KEY`."),
    Option("tlsHostname", text(), None, ALL, "TLS: the name the server's certificate must have."),
    Option("insecure", flag(), "false", ALL, "Let a token travel without TLS to another machine."),
    # Patience
    Option(
        "retryTimeout",
        duration(),
        "5m",
        ALL,
        "How long a server that can't be reached or can't take more is tried again, without"
        " any progress, before the task fails.",
    ),
    Option(
        "connectTimeout",
        duration(),
        "30s",
        ALL,
        "How long a driver or a task waits at its start for a server that does not answer.",
    ),
    # What
    Option("slot", text(), None, ALL - {PUT}, "The slot to read; to write, else `Rows`."),
    Option(
        "timestampMode",
        choice("us", "long_ns"),
        "us",
        READS,
        "Nanosecond timestamps: `us` refuses values that Spark's microseconds can't hold,"
        " `long_ns` gives whole numbers of nanoseconds.",
    ),
    # Reading
    Option(
        "mode",
        choice("slot", "bundle"),
        "slot",
        READS,
        "`slot`: a slot's rows, in Spark's types. `bundle`: a row for each slot of each bundle,"
        " its data an Arrow IPC stream: lossless.",
    ),
    Option(
        "columns",
        words(),
        None,
        READS,
        "Only these columns, in this order; the server sends no others.",
    ),
    Option(
        "includeMetadata",
        flag(),
        "false",
        READS,
        "Also `_ref`, `_sequence`, `_ingested_at` and `_slot`.",
    ),
    Option(
        "newColumns",
        choice("fail", "ignore"),
        "fail",
        READS,
        "A column that came into the stream after the schema was read: say so, or leave it out.",
    ),
    Option(
        "startingOffsets",
        text(),
        None,
        READS,
        "`earliest` (the default), `latest` (readStream only), or a position such as `12.0`."
        " For new queries; a subscriber that is known resumes unless this is given.",
    ),
    Option(
        "startingTimestamp",
        text(),
        None,
        READS,
        "Bundles taken in at this time or later: milliseconds since 1970, or"
        " `2024-05-01T12:00:00Z`.",
    ),
    Option(
        "endingOffsets",
        text(),
        None,
        frozenset({READ}),
        "Up to this position, excluded; `latest` is the default.",
    ),
    Option(
        "endingTimestamp", text(), None, frozenset({READ}), "Bundles taken in before this time."
    ),
    Option("minPartitions", whole(1, 100_000), None, READS, "At least so many tasks."),
    Option("maxPartitionBytes", size(), "64MiB", READS, "Most bytes of one task."),
    Option(
        "failOnDataLoss",
        flag(),
        "true",
        READS,
        "Fail if bundles that should be read are gone; else skip them, and log it.",
    ),
    Option(
        "subscriber",
        text(),
        None,
        frozenset({READ_STREAM}),
        "For whom the stream holds what the query has not finished. Default: one of its own for"
        " each query, kept in the checkpoint. Never share one among queries.",
    ),
    Option(
        "maxBundlesPerTrigger",
        whole(1, 1 << 40),
        None,
        frozenset({READ_STREAM}),
        "Most bundles of one micro-batch.",
    ),
    Option(
        "maxBytesPerTrigger",
        size(),
        None,
        frozenset({READ_STREAM}),
        "Most bytes of one micro-batch, one bundle anyway.",
    ),
    # Putting
    Option("windowBundles", whole(1, 65_536), "64", PUTS, "Most bundles in flight per task."),
    Option("windowBytes", size(1 << 16), "32MiB", PUTS, "Most bytes in flight per task."),
    # Writing
    Option(
        "slotColumn",
        text(),
        None,
        WRITES,
        "A column with the name of the slot each row is for, instead of `slot`; it is not written.",
    ),
    Option(
        "bundleBytes",
        size(1 << 10),
        "16MiB",
        PUTS,
        "A batch of rows that is larger becomes several bundles.",
    ),
    Option(
        "app",
        text(),
        None,
        WRITES,
        "Who writes, as the server shows it, instead of `spark`. With `version`: the name under"
        " which a write happens once, however often it is run.",
    ),
    Option(
        "version",
        whole(0, 2**63 - 1),
        None,
        frozenset({WRITE}),
        "Which write of `app` this is; one that is not above the last one is there already.",
    ),
)
"""A new option is a row here, and ``Values`` has it."""


def known(use: str | None = None) -> list[Option]:
    """The whole table, or what counts for one use."""
    return [one for one in TABLE if use is None or use in one.uses]


class Values(Mapping[str, Any]):
    """Options as read, by their right names: all of one use, with their defaults.

    Secrets don't show.
    """

    def __init__(self, values: dict[str, Any], given: frozenset[str]) -> None:
        self._values = values
        self.given = given
        """Names of those that were said, not defaulted."""

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        secret = {one.name for one in TABLE if one.secret}
        shown = {name: "…" if name in secret else self[name] for name in sorted(self.given)}
        return f"Values({shown})"

    def target(self) -> Target:
        """Which stream; the one option that has no default."""
        if self["url"] is None:
            raise BadRequest(
                "bad_request", 'no stream: say .option("url", "quiver://host:port/stream").'
            )
        return Target.parse(self["url"])

    def credentials(self, env: Mapping[str, str] | None = None) -> Credentials:
        """As whom."""
        return Credentials.gather(
            token=self["token"],
            token_file=self["tokenFile"],
            tls_ca=self["tlsCa"],
            tls_cert=self["tlsCert"],
            tls_key=self["tlsKey"],
            tls_hostname=self["tlsHostname"],
            insecure=self["insecure"],
            env=env,
        )

    def retry(self) -> Retry:
        """How patient."""
        return Retry(give_up_after=self["retryTimeout"])


def read(options: Mapping[str, str], use: str, among: Iterable[Option] | None = None) -> Values:
    """Options as Spark hands them over, for one use, or for all that ``among`` says."""
    table = known(use) if among is None else list(among)
    by_name = {name.lower(): one for one in table for name in (one.name, *one.aliases)}
    said: dict[str, Any] = {}
    for name, value in options.items():
        option = by_name.get(name.lower())
        if option is None:
            if name.lower() not in SPARKS_OWN:
                raise _unknown(name, use, table)
            continue
        if option.name in said:
            raise _bad(f"{option.name} is given twice, as {' and as '.join(_both(option))}.")
        said[option.name] = _value(option, value)
    values = {
        one.name: None if one.default is None else one.kind.read(one.default) for one in table
    }
    return Values({**values, **said}, frozenset(said))


def _both(option: Option) -> tuple[str, ...]:
    return option.name, *option.aliases


def _value(option: Option, value: object) -> Any:
    given = str(value)
    try:
        return option.kind.read(given)
    except ValueError:
        shown = "" if option.secret else f", not {given[:80]!r}"
        raise _bad(f"{option.name} takes {option.kind.name}{shown}.") from None


def _unknown(name: str, use: str, table: list[Option]) -> BadRequest:
    elsewhere = [one for one in TABLE if one.name.lower() == name.lower()]
    if elsewhere:
        uses = ", ".join(sorted(elsewhere[0].uses))
        return _bad(f"option {elsewhere[0].name} means nothing for {use}: it is for {uses}.")
    names = {one.name.lower(): one.name for one in table}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {names[near[0]]}?" if near else ""
    return _bad(f"there is no option {name[:80]!r}.{hint} Known: {', '.join(names.values())}.")


def _bad(message: str) -> BadRequest:
    return BadRequest("bad_request", message)


def described() -> str:
    """The table of ``docs/spark.md``."""
    rows = ["| option | for | takes | default | meaning |", "|---|---|---|---|---|"]
    for one in TABLE:
        uses = "all" if one.uses == ALL else ", ".join(sorted(one.uses))
        default = "" if one.default is None else f"`{one.default}`"
        takes = one.kind.name.replace("|", "\\|")
        rows.append(f"| `{one.name}` | {uses} | {takes} | {default} | {one.help} |")
    return "\n".join(rows)
