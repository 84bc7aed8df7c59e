"""Pages of the documentation as scripts: what they show is what is run.

The ``sh`` and ``python`` blocks of a page become one script, in their order.  A line that
ends in ``# exit 2 …`` must exit with that; a bare ``quiver serve`` runs behind the others
until the page stops it, and ``quiver tail`` until somebody does; ``<!-- run: … -->`` does
what a reader can't see, with the helpers below; the ``python`` block behind
``<!-- before each -->`` is in front of every later one.  Well-known places and ports are moved to
where a test may write and listen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.wire.process import free_port

BLOCK = re.compile(
    r"^(?P<first><!-- before each -->\n\n)?```(?P<kind>sh|python)\n(?P<code>.*?)^```$"
    r"|^<!-- run: (?P<hidden>[^\n]*) -->$",
    re.M | re.S,
)
EXPECTED = re.compile(r"^(?P<command>.*\S)\s+# exit (?P<code>\d)\b.*$", re.M)
PLACES = ("/etc/quiver", "/var/lib/quiver", "/backup")
SECONDS = 300

HELPERS = r"""
set -euo pipefail
server=
start_server() {
  command quiver serve "$@" >> server.log 2>&1 &
  server=$!
  { set +x; } 2> /dev/null
  until curl -sf http://127.0.0.1:8816/readyz > /dev/null; do
    kill -0 "$server" || { cat server.log; exit 99; }
    sleep 0.1
  done
  set -x
}
stop_server() { kill -TERM "$server"; wait "$server"; server=; }
systemctl() {
  case "$1" in
    start) start_server --config /etc/quiver/quiver.yaml --log json ;;
    stop) stop_server ;;
    restart) stop_server; systemctl start ;;
  esac
}
expect() {
  local want=$1 got=0; shift
  "$@" || got=$?
  [ "$got" = "$want" ] || { echo "exit $got instead of $want: $*" >&2; exit 98; }
}
make_logs() {
  python3 -c 'import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"severity": ["WARN", "ERROR"], "body": ["slow", "down"]}), "logs.parquet")'
}
damage_the_log() {
  quiver put telemetry "$START/logs.parquet" --again
  quiver put telemetry "$START/logs.parquet" --again
  kill -KILL "$server"; wait "$server" || true
  python3 - /var/lib/quiver/streams/telemetry/store/wal/quiver.wal <<'EOF'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(200)
    byte = file.read(1)
    file.seek(200)
    file.write(bytes([byte[0] ^ 1]))
EOF
  systemctl start quiver
}
until_it_is_back() { until quiver get telemetry --rows 0 > /dev/null 2>&1; do sleep 0.5; done; }
trap '[ -z "$server" ] || kill -KILL "$server"' EXIT
START=$PWD
set -x
"""


def script(page: Path) -> str:
    """Everything a page shows, as one script."""
    parts, before = [HELPERS], ""
    for found in BLOCK.finditer(page.read_text()):
        if found["first"]:
            before = found["code"]
        if found["kind"] == "python":
            code = found["code"] if found["first"] else before + found["code"]
            parts.append(f"python3 - <<'EXAMPLE'\n{code}EXAMPLE\n")
            continue
        code = found["hidden"] or found["code"]
        code = re.sub(r"^quiver serve$", "start_server", code, flags=re.M)
        code = re.sub(r"^(quiver tail \S+)\s+#.*$", r"expect 124 timeout 8 \1", code, flags=re.M)
        parts.append(EXPECTED.sub(r"expect \g<code> \g<command>", code) + "\n")
    return "".join(parts)


def run_page(page: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in a directory; it must be able to do so as it stands."""
    flight, http = free_port(), free_port()
    code = script(page).replace(":8815", f":{flight}").replace(":8816", f":{http}")
    for place in PLACES:
        code = code.replace(place, f"{where}{place}")
        (where / place[1:]).parent.mkdir(parents=True, exist_ok=True)
    (where / "backup").mkdir()
    here = where / "here"
    here.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("QUIVER_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "QUIVER_SERVER__PORT": str(flight),
        "QUIVER_HTTP__PORT": str(http),
        "QUIVER_URL": f"grpc://127.0.0.1:{flight}",
    }
    return subprocess.run(
        ["bash", "-c", code],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
