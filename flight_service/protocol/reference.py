"""The tables of ``docs/protocol.md``, made from the messages themselves.

``python -m flight_service.protocol.reference docs/protocol.md`` writes them between their
markers; a test holds the page to it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from flight_service.protocol import actions, exchange, get, put, stage
from flight_service.protocol.message import Message

BEGIN: Final = "<!-- begin: written by flight_service.protocol.reference -->"
END: Final = "<!-- end -->"

MESSAGES: Final[tuple[type[Message], ...]] = (
    put.PutCommand,
    stage.StageName,
    put.Envelope,
    put.Member,
    put.PutReceipt,
    get.ReadCommand,
    get.Ticket,
    get.FlightMeta,
    get.StreamMeta,
    get.BundleInfo,
    exchange.SubscribeCommand,
    exchange.BundleInfos,
    exchange.ClientMessage,
    exchange.ServerMessage,
)


def tables() -> str:
    """Every message with its fields, then every action."""
    parts = [_message(message) for message in MESSAGES]
    seen: set[type[Message]] = set()
    rows = ["| action | takes | answers | does |", "|---|---|---|---|"]
    for action in actions.ACTIONS.values():
        seen |= {action.request, action.answer}
        rows.append(
            f"| `{action.name}` | {action.request.__name__} | {action.answer.__name__}"
            f" | {action.doc} |"
        )
    parts.append("### Actions\n\n" + "\n".join(rows))
    ordered = sorted(seen, key=lambda message: message.__name__)
    parts += [_message(message) for message in ordered if message.fields()]
    return "\n\n".join(parts)


def _message(message: type[Message]) -> str:
    rows = ["| field | value | default | meaning |", "|---|---|---|---|"]
    for info in message.fields():
        kind = info.kind.name.replace("|", "\\|")
        default = "**required**" if info.required else _shown(info.default)
        rows.append(f"| `{info.name}` | {kind} | {default} | {info.doc} |")
    return f"### {message.__name__}\n\n" + "\n".join(rows)


def _shown(default: object) -> str:
    if default is None or default == ():
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def update(page: str) -> str:
    """A page with its tables brought up to date."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main() -> None:
    """Rewrite the tables of the page named."""
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text()))


if __name__ == "__main__":
    main()
