"""Is the server here fit to work?  For container engines and scripts.

``python -m flight_service.health`` asks the server's own ``/readyz`` and ends with 0 or 1,
like ``quiver health``, which is made of this.  It needs the standard library only: an
engine asks every few seconds, and must not pay for loading a whole client each time.

It finds the server by the settings in the environment it shares with it.  It needs no
token and no certificate: readiness is no secret, and HTTP has neither.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

HOST: Final = "QUIVER_HTTP__HOST"
PORT: Final = "QUIVER_HTTP__PORT"
DEFAULT_PORT: Final = "8816"
ANY_ADDRESS: Final = ("", "0.0.0.0", "::")
TIMEOUT: Final = 3.0


def address(environment: Mapping[str, str]) -> str:
    """Where the server that has these settings answers."""
    host = environment.get(HOST, "")
    if host in ANY_ADDRESS:
        host = "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{environment.get(PORT) or DEFAULT_PORT}"


def ask(url: str, timeout: float = TIMEOUT) -> tuple[bool, str]:
    """Whether the server at an address is ready, and what it says about that."""
    # No proxy of the environment: this is about a server next to us.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"{url}/readyz", timeout=timeout) as answer:
            return True, answer.read().decode(errors="replace").strip()
    except HTTPError as refusal:
        return False, refusal.read().decode(errors="replace").strip()
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        return False, f"no answer at {url} ({reason})"


def main() -> int:
    """Ask, tell, and the exit code."""
    ready, said = ask(address(os.environ))
    sys.stdout.write(said + "\n")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
