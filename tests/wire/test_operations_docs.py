"""docs/operations.md and README.md are true: what they show runs, what they list is complete."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from docs.generate import ADVICE, PAGE, library_errors, update
from flight_service.protocol import errors as wire
from flight_service.server import Server, events
from flight_service.server.authz import ALL_VERBS
from flight_service.server.put import OUT_OF_TURN
from quiver import events as store_events
from quiver import metrics
from tests.support.pages import SECONDS, run_page

ROOT = Path(__file__).parents[2]
TEXT = PAGE.read_text()
PAGES = ["README.md", "docs/operations.md", "docs/tutorial.md", "docs/how-to.md"]
DOCS = sorted((ROOT / "docs").glob("*.md"))

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("bash", "curl", "openssl")),
    reason="the pages use bash, curl and openssl",
)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("page", PAGES)
def test_everything_a_page_shows_runs(page: str, tmp_path: Path) -> None:
    """Scenario: a reader types a page from top to bottom. Guarantee: every command does
    what it says there, with the exit code it says."""
    done = run_page(ROOT / page, tmp_path)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


def test_the_tables_are_the_codes_own() -> None:
    """Scenario: a setting, metric or error is added and the page forgotten. Guarantee: this
    test remembers; `python -m docs.generate` mends it."""
    assert update(TEXT) == TEXT


def test_every_error_has_its_row_and_no_row_is_made_up() -> None:
    """Scenario: an error code is new, or gone. Guarantee: the table has exactly those that
    exist: the library's, the protocol's, and what the service makes as it goes."""
    known = {*library_errors(), *wire.UNAVAILABLE_CODES, *wire.INTERNAL_CODES, OUT_OF_TURN}
    known |= wire.RETRYABLE_CODES
    for path in (ROOT / "flight_service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ServiceError":
                known |= {str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)}
    assert set(ADVICE) == known
    wire_only = [code for code in ADVICE if code not in library_errors()]
    assert [code for code in wire_only if ADVICE[code].fault is None] == []


def test_library_and_protocol_agree_on_what_can_be_retried() -> None:
    """Scenario: an error goes over the wire. Guarantee: `retryable` doesn't change on the
    way, whichever side decides it."""
    for code, error in library_errors().items():
        assert error.retryable == (code in wire.RETRYABLE_CODES), code


def test_every_metric_named_exists(server: Server) -> None:
    """Scenario: alerts and lists of the page. Guarantee: no metric is made up, the server's
    own are all listed, and the alerts are well-formed."""
    body = urlopen(f"http://127.0.0.1:{server.http_port}/metrics").read().decode()
    served = set(re.findall(r"^# TYPE (quiver_server_\w+)", body, re.M))
    stores = {one.name.replace(".", "_") for one in metrics.ALL}
    buckets = {f"{one.name.replace('.', '_')}_bucket" for one in metrics.ALL if one.bounds}
    named = set(re.findall(r"quiver_\w+", TEXT))
    assert named - served - stores - buckets == set()
    assert served - named == set()
    rules = [block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S) if "groups:" in block]
    [group] = yaml.safe_load(rules[0])["groups"]
    assert all(re.fullmatch(r"Quiver\w+", rule["alert"]) for rule in group["rules"])


def test_every_event_and_verb_named_exists() -> None:
    """Scenario: the events worth finding, the table of verbs. Guarantee: they are the
    code's."""
    known = {
        value
        for module in (events, store_events)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    named = set(re.findall(r"`(quiver\.[a-z_]+\.[a-z_]+)`", TEXT))
    assert len(named) > 5
    assert named <= known
    table = TEXT.partition("| verb | lets |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == ALL_VERBS


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{one.name}" for one in DOCS)])
def test_links_lead_somewhere(page: str) -> None:
    """Scenario: links between pages, and to headings. Guarantee: file and heading exist."""
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", ["threat-model.md", "reliability.md"])
def test_tests_named_exist(page: str) -> None:
    """Scenario: a page says which test shows it. Guarantee: there is such a test."""
    text = (ROOT / "docs" / page).read_text()
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in code, name
    for path in re.findall(r"`(tests/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
