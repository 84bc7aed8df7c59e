"""The runner of `make prove`: what it counts, and where it puts the table."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.prove import (
    BEGIN,
    END,
    PAGE,
    TRIALS,
    Outcome,
    Trial,
    _read,
    _read_junit,
    as_text,
    write_into,
)

JUNIT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="tried" value="40"/>
<property name="refused" value="3"/></properties></testcase>
<testcase name="b"><failure message="no"/></testcase>
<testcase name="c"><skipped message="why"/></testcase>
</testsuite></testsuites>"""

ROW = Trial("flips", "bytes flipped", ("-m", "pytest"))


def test_what_tests_say_is_counted(tmp_path: Path) -> None:
    """Tried as the test says, one if it doesn't; failures and skips are told apart."""
    path = tmp_path / "junit"
    path.write_text(JUNIT)
    tried, failed, notes = _read_junit(path)
    assert (tried, failed) == (41, 1)
    assert notes == {"refused": 3, "skipped": 1}


def test_what_a_command_says_is_counted(tmp_path: Path) -> None:
    """A command that is no pytest tells in JSON; kinds of trouble that it could not play are
    told in the row."""
    path = tmp_path / "results"
    path.write_text('{"tried": 40, "failed": 1, "not_played": {"full": "no mount"}}')
    trial = Trial("chaos", "rounds", ("-m", "tests.chaos"))
    assert _read(trial, path) == (40, 1, {"not played here": 1})
    assert _read(trial, tmp_path / "none") == (0, 1, {})
    assert "chaos" in {trial.name for trial in TRIALS}


def test_a_row_that_tried_nothing_has_failed() -> None:
    """An empty suite is no proof."""
    assert not Outcome(ROW, 0, 0, 1.0, {}, "").good
    assert Outcome(ROW, 5, 0, 1.0, {}, "").good
    assert "FAILED" in as_text([Outcome(ROW, 5, 1, 1.0, {}, "")])


def test_the_table_goes_between_the_marks() -> None:
    """Twice is the same as once, and the rest of the page is left alone."""
    outcomes = [Outcome(ROW, 1234, 0, 5.6, {"refused": 3}, "")]
    when = datetime(2026, 1, 2, tzinfo=UTC)
    once = write_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", outcomes, when)
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "| `flips`: bytes flipped | 1,234 | 0 | 6 | 3 refused |" in once
    assert "old" not in once
    assert write_into(once, outcomes, when) == once
    with pytest.raises(SystemExit):
        write_into("no marks", outcomes, when)


def test_the_page_has_the_marks_and_the_suites_exist() -> None:
    """What is to be run is there, and the table has its place."""
    text = PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)
    root = PAGE.parents[1]
    for trial in TRIALS:
        for part in trial.command:
            if part.startswith("tests/"):
                assert (root / part).exists(), part
