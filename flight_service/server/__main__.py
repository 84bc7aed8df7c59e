"""``python -m flight_service.server [settings.yaml]``: serve, without the command line tool."""

from __future__ import annotations

import json
import logging
import sys

from flight_service.server.lifecycle import Server
from flight_service.server.process import tune_process
from flight_service.server.settings import Settings
from quiver.errors import QuiverError


def main() -> int:
    """Serve; the first line on standard output says where, as JSON."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    tune_process()
    try:
        settings = Settings.load(sys.argv[1] if len(sys.argv) > 1 else None)
        server = Server(settings)
    except QuiverError as error:
        sys.stderr.write(f"quiver: {error}\n")
        return 2
    return server.run(_announce)


def _announce(server: Server) -> None:
    where = {"flight": server.port, "http": server.http_port}
    sys.stdout.write(json.dumps(where) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
