"""Events: fixed names, fields kept, nothing printed by the library itself."""

from __future__ import annotations

import logging
import re

import pytest

from quiver import events

NAMES = {
    name: value
    for name, value in vars(events).items()
    if name.isupper() and isinstance(value, str) and name != "LOGGER"
}


def test_event_names_are_unique_and_alike() -> None:
    """Scenario: somebody alerts on a name. Guarantee: one shape, no two the same."""
    assert len(set(NAMES.values())) == len(NAMES) > 20
    assert all(re.fullmatch(r"quiver\.[a-z]+\.[a-z_]+", value) for value in NAMES.values())


def test_an_event_reaches_the_standard_logger_with_its_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Scenario: an application with ordinary logging. Guarantee: a readable line, and the fields
    on the record; a percent sign in a value is only a percent sign."""
    log = events.get_logger(store="telemetry")
    with caplog.at_level(logging.INFO, events.LOGGER):
        log.warning(events.WAL_TRUNCATED, file="100%s.wal", offset=3)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "quiver.wal.truncated store='telemetry' file='100%s.wal' offset=3"
    )
    assert vars(record)["event"] == events.WAL_TRUNCATED
    assert vars(record)["fields"] == {"store": "telemetry", "file": "100%s.wal", "offset": 3}


def test_a_field_may_have_any_name(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: fields named as the logging module's own attributes. Guarantee: no clash."""
    with caplog.at_level(logging.INFO, events.LOGGER):
        events.get_logger().info(events.STORE_OPENED, name="x", args=1, message="m", module="n")
    assert vars(caplog.records[0])["fields"] == {
        "name": "x",
        "args": 1,
        "message": "m",
        "module": "n",
    }


def test_a_modules_logger_is_below_the_stores(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: one module is turned up or down. Guarantee: by its name, in the usual tree."""
    with caplog.at_level(logging.INFO, events.LOGGER):
        events.get_logger("quiver.wal.writer").info(events.WAL_TRUNCATED)
    assert caplog.records[0].name == "quiver.wal.writer"


def test_an_exception_travels_with_its_event(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: a background job fails. Guarantee: the traceback is logged, not swallowed."""
    log = events.get_logger()
    with caplog.at_level(logging.INFO, events.LOGGER):
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            log.exception(events.BACKGROUND_FAILED, job="finalize")
    assert "RuntimeError: boom" in caplog.text


def test_silent_below_the_level_and_never_on_stdout(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario: debug events in a program that asked for warnings. Guarantee: nothing anywhere."""
    with caplog.at_level(logging.WARNING, events.LOGGER):
        events.get_logger().info(events.STORE_OPENED)
    assert caplog.records == []
    assert capsys.readouterr().out == ""
