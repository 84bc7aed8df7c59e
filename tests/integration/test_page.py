"""docs/compose.md is true: the whole pipeline of docker-compose.yml, as a reader runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import MakeProject
from tests.integration.engine import REPOSITORY, compose_command
from tests.support.pages import BLOCK, EXPECTED

pytestmark = pytest.mark.xdist_group("spark")

PAGE = REPOSITORY / "docs" / "compose.md"
SECONDS = 420.0
HELPERS = r"""
set -euo pipefail
expect() {
  local want=$1 got=0; shift
  "$@" || got=$?
  [ "$got" = "$want" ] || { echo "exit $got instead of $want: $*" >&2; exit 98; }
}
# A round is over, and both subscribers have had something since the server started.
until_it_flows() {
  until docker compose logs producer | grep "rows in" > /dev/null; do sleep 0.5; done
  for who in exporter archive; do
    until curl -s http://127.0.0.1:8816/metrics |
      grep "^quiver_subscriber_acked_bundles_total.*subscriber=\"$who\".* [1-9]" > /dev/null; do
      sleep 0.5
    done
  done
}
set -x
"""


def script(http_port: int) -> str:
    """Everything the page shows, with the ports and the compose of this machine."""
    parts = [HELPERS]
    for found in BLOCK.finditer(PAGE.read_text()):
        code = found["hidden"] or found["code"]
        parts.append(EXPECTED.sub(r"expect \g<code> \g<command>", code) + "\n")
    text = "".join(parts).replace(":8816", f":{http_port}")
    text = re.sub(r"\bdocker compose\b", " ".join(compose_command()), text)
    return text.replace("> one.json", '> "$OUT/one.json"')


@pytest.mark.timeout(SECONDS + 60)
def test_the_page_runs_as_it_stands(make_project: MakeProject, tmp_path: Path) -> None:
    """Scenario: a reader types docs/compose.md from top to bottom. Guarantee: the pipeline
    starts, every command does what it says, the pipeline goes on after the server was
    killed, and nothing is left behind.

    Seen to fail: a service of another name in one command."""
    project = make_project()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COMPOSE_PROJECT_NAME": project.name,
        "QUIVER_TAG": project.tag,
        "QUIVER_FLIGHT_PORT": str(project.flight_port),
        "QUIVER_HTTP_PORT": str(project.http_port),
        "QUIVER_SPARK_PORT": str(project.spark_port),
        "OUT": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-c", script(project.http_port)],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "rows in" in done.stdout, "the producer says what it put"
    assert "bundles behind" in done.stdout, "the subscribers say how they do"
    assert "is writing to it" in done.stdout
    assert (tmp_path / "one.json").stat().st_size > 0
    assert project.left() == []
