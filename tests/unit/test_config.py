"""Settings: one model, checked where it comes in, with errors that name the setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiver.config import (
    Config,
    LimitsConfig,
    WalConfig,
    setting_names,
    settings,
    smallest_cap,
)
from quiver.errors import ConfigError
from quiver.units import KIB, MIB


def load(**overrides: Any) -> Config:
    return Config.load(env={}, **overrides)


def refused(**overrides: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(**overrides)
    return caught.value


# ------------------------------------------------------------------ sources


def test_defaults_need_no_file() -> None:
    """Scenario: nothing is configured. Guarantee: safe defaults, the documented ones."""
    config = load()
    assert config == Config()
    assert config.durability == "wal"
    assert config.wal.flush == "group"
    assert config.retention.size_cap_policy == "backpressure"
    assert config.retention.max_age is None


def test_arguments_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """Scenario: one section set by all sources. Guarantee: the documented precedence, setting by
    setting, not section by section."""
    file = tmp_path / "quiver.yaml"
    file.write_text(
        "wal: {max_rotated_files: 20, flush: every, flush_interval: 1s, recycle: false}"
    )
    env = {"QUIVER_WAL__FLUSH": "interval", "QUIVER_WAL__FLUSH_INTERVAL": "50ms"}
    config = Config.load(file, env=env, wal__flush_interval=0.2)
    assert config.wal.recycle is False
    assert config.wal.max_rotated_files == 20
    assert config.wal.flush == "interval"
    assert config.wal.flush_interval == 0.2
    assert config.wal.max_size == WalConfig().max_size


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.yaml", "validation: off\nsegment:\n  target_size: 16MiB\nslots: {Logs: 30}\n"),
        ("q.yml", "validation: 'off'\nsegment: {target_size: 16777216}\nslots:\n  Logs: 30\n"),
        ("q.toml", "validation='off'\nsegment.target_size='16MiB'\n[slots]\nLogs=30\n"),
    ],
)
def test_yaml_and_toml_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    """Scenario: the same settings in each kind of file. Guarantee: the same configuration; and
    YAML's `off` is the word, not false."""
    file = tmp_path / name
    file.write_text(text)
    config = Config.load(file, env={})
    assert config == load(validation="off", segment={"target_size": 16 * MIB}, slots={"Logs": 30})


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    """Scenario: all lines commented out. Guarantee: the defaults."""
    file = tmp_path / "quiver.yaml"
    file.write_text("# wal: {}\n")
    assert Config.load(file, env={}) == Config()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("q.yaml", "wal: [1, 2", "can't be parsed"),
        ("q.yaml", "wal: {flush: every}\nwal: {flush: group}", "set twice"),
        ("q.yaml", "- wal", "by name"),
        ("q.yaml", "x: !!python/object/apply:os.getcwd []", "can't be parsed"),
        ("q.toml", "wal =", "can't be parsed"),
        ("q.json", "{}", ".yaml, .yml and .toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    """Scenario: a broken or foreign file. Guarantee: refused, with the file's name and why."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        Config.load(file, env={})
    assert str(file) in str(caught.value)


def test_missing_binary_and_oversized_files_are_refused(tmp_path: Path) -> None:
    """Scenario: no such file, not text, far too big. Guarantee: each a ConfigError."""
    with pytest.raises(ConfigError, match="can't be read"):
        Config.load(tmp_path / "none.yaml", env={})
    binary, huge = tmp_path / "b.yaml", tmp_path / "h.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    huge.write_bytes(b"#" * (2 * MIB))
    with pytest.raises(ConfigError, match="can't be parsed"):
        Config.load(binary, env={})
    with pytest.raises(ConfigError, match="at most"):
        Config.load(huge, env={})


def test_the_environment_sets_every_kind_of_value() -> None:
    """Scenario: text variables for a word, a size, a duration, a number, a flag, a table, off.
    Guarantee: each arrives as its type."""
    env = {
        "QUIVER_DURABILITY": "segment_only",
        "QUIVER_SEGMENT__TARGET_SIZE": "8MiB",
        "QUIVER_SEGMENT__MAX_OPEN_DURATION": "2",
        "QUIVER_SEGMENT__MAX_STREAMS": "17",
        "QUIVER_WAL__RECYCLE": "false",
        "QUIVER_SLOTS": '{"Logs": 30, "LogAttrs": 31}',
        "QUIVER_RETENTION__SIZE_CAP": "null",
        "PATH": "/bin",
    }
    config = Config.load(env=env)
    assert config.durability == "segment_only"
    assert config.segment.target_size == 8 * MIB
    assert config.segment.max_open_duration == 2.0
    assert config.segment.max_streams == 17
    assert config.wal.recycle is False
    assert config.slots == {"Logs": 30, "LogAttrs": 31}
    assert config.retention.size_cap is None


def test_the_processes_own_environment_is_used_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario: `Config.load()` in a program. Guarantee: os.environ counts; env={} ignores it."""
    monkeypatch.setenv("QUIVER_WAL__FLUSH", "every")
    assert Config.load().wal.flush == "every"
    assert Config.load(env={}).wal.flush == "group"


def test_variables_of_others_are_left_alone() -> None:
    """Scenario: QUIVER_ variables that are no settings at all. Guarantee: no complaint."""
    assert Config.load(env={"QUIVER_BASE_IMAGE": "x", "QUIVER_TOKEN": "y"}) == Config()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("QUIVER_WAL__MAX_SIZ", "QUIVER_WAL__MAX_SIZE"),
        ("QUIVER_DURABILTY", "QUIVER_DURABILITY"),
        ("QUIVER_WAL_MAX_SIZE", "QUIVER_WAL__MAX_SIZE"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_right_one(variable: str, meant: str) -> None:
    """Scenario: a typo in a variable, or one underscore too few. Guarantee: not silently
    ignored."""
    with pytest.raises(ConfigError, match=rf"{variable} is not a setting.*{meant}\?"):
        Config.load(env={variable: "1GiB"})


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("given", "setting", "says"),
    [
        ({"wal": {"max_siz": 1}}, "wal.max_siz", "Did you mean wal.max_size?"),
        ({"durabilty": "wal"}, "durabilty", "Did you mean durability?"),
        ({"max_size": "1GiB"}, "max_size", "Did you mean wal.max_size?"),
        ({"wal": {"zzz": 1}}, "wal.zzz", "Known are wal.flush,"),
        ({"wal__flush": "sometimes"}, "wal.flush", "every, group or interval"),
        ({"wal__recycle": "yes"}, "wal.recycle", "true or false"),
        ({"wal__max_rotated_files": 1}, "wal.max_rotated_files", "at least 2"),
        ({"wal__max_rotated_files": "12"}, "wal.max_rotated_files", "a whole number"),
        ({"segment__target_size": "12 bananas"}, "segment.target_size", "32MiB"),
        ({"segment__target_size": True}, "segment.target_size", "32MiB"),
        ({"segment__max_open_duration": "5 parsecs"}, "segment.max_open_duration", "1h30m"),
        ({"segment__max_open_duration": 0}, "segment.max_open_duration", "more than 0"),
        ({"segment__max_open_duration": float("inf")}, "segment.max_open_duration", "finite"),
        ({"limits__max_bundle": "1GiB"}, "limits.max_bundle", "at most 268,435,456"),
        ({"wal": 3}, "wal", "a section"),
        ({"slots": {"Logs": 64}}, "slots.Logs", "an id from 0 to 63"),
        ({"slots": {"A": 1, "B": 1}}, "slots.A", "no other slot"),
        ({"slots": {"a/b": 1}}, "slots.a/b", "a valid name"),
        ({"slots": {"A": "1"}}, "slots.A", "a whole number"),
        ({"slots": {"A": 1}, "event_time": {"B": "t"}}, "event_time.B", "declared in slots"),
    ],
)
def test_every_error_names_the_setting_and_what_is_allowed(
    given: dict[str, Any], setting: str, says: str
) -> None:
    """Scenario: a wrong name or value. Guarantee: the setting's dotted name, the value and what
    is allowed are in the text, and in the details for programs."""
    error = refused(**given)
    assert error.details["setting"] == setting
    assert setting in str(error)
    assert says in str(error)
    assert {"value", "allowed", "source"} <= set(error.details)


def test_the_value_and_who_set_it_are_shown(tmp_path: Path) -> None:
    """Scenario: wrong values from a file and from a variable. Guarantee: each error names its
    source, and all problems come at once."""
    file = tmp_path / "quiver.yaml"
    file.write_text("segment: {target_size: huge}")
    with pytest.raises(ConfigError) as caught:
        Config.load(file, env={"QUIVER_WAL__FLUSH": "never"})
    first, second = str(caught.value).splitlines()
    assert first.startswith("wal.flush (from QUIVER_WAL__FLUSH) is 'never'")
    assert second.startswith(f"segment.target_size (from {file}) is 'huge'")
    assert caught.value.details["problems"] == ["wal.flush", "segment.target_size"]


def test_a_huge_value_is_shown_cut_off() -> None:
    """Scenario: a megabyte where a word belongs. Guarantee: a short error."""
    assert len(str(refused(durability="x" * MIB))) < 300


def test_a_section_made_by_hand_fails_the_same_way() -> None:
    """Scenario: `WalConfig(max_siz=1)` in code. Guarantee: a ConfigError with the dotted name,
    not another library's exception."""
    with pytest.raises(ConfigError, match=r"wal\.max_siz is not a setting. Did you mean"):
        WalConfig(max_siz=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"limits\.max_nesting is 0"):
        LimitsConfig(max_nesting=0)


def test_a_section_given_as_value_and_by_parts_is_refused() -> None:
    """Scenario: wal=… and wal__flush=… together. Guarantee: no guess which one counts."""
    error = refused(wal=WalConfig(), wal__flush="every")
    assert error.details["setting"] == "wal"


# ------------------------------------------------------------------ settings that must agree


def test_the_log_must_hold_two_segments_the_largest_bundle_and_a_file() -> None:
    """Scenario: a log cap one byte too small, then just enough. Guarantee: refused, then taken:
    below it, ingest could stand still for ever."""
    sizes = {"segment__target_size": 4 * KIB, "limits__max_bundle": 2 * KIB}
    smallest = 2 * 4 * KIB + 2 * KIB + KIB
    error = refused(**sizes, wal__rotation_target=KIB, wal__max_size=smallest - 1)
    assert error.details["setting"] == "wal.max_size"
    assert load(**sizes, wal__rotation_target=KIB, wal__max_size=smallest).wal.max_size == smallest


def test_the_log_needs_files_enough() -> None:
    """Scenario: many bytes allowed, but in too few files. Guarantee: refused with the number."""
    error = refused(wal__rotation_target="1MiB", wal__max_rotated_files=65)
    assert error.details["setting"] == "wal.max_rotated_files"
    assert "at least 66" in str(error)


def test_the_size_cap_must_leave_room_to_work() -> None:
    """Scenario: a cap that log, two segments and the reserve would not fit into. Guarantee:
    refused; a store without a log needs less."""
    need = smallest_cap(Config())
    assert refused(retention__size_cap=need - 1).details["setting"] == "retention.size_cap"
    assert load(retention__size_cap=need).retention.size_cap == need
    assert smallest_cap(load(durability="segment_only")) == need - Config().wal.max_size


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"limits__max_unsynced": "1MiB"}, "limits.max_unsynced"),
        ({"segment__max_variants": 5}, "segment.max_variants"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(given: dict[str, Any], setting: str) -> None:
    """Scenario: one limit makes another unreachable. Guarantee: refused, naming the one to
    raise."""
    assert refused(**given).details["setting"] == setting


def test_a_configuration_cannot_be_changed() -> None:
    """Scenario: somebody assigns to a setting. Guarantee: refused; what was checked stays so."""
    config = load()
    with pytest.raises(ValueError, match="frozen"):
        config.wal.max_size = 1
    with pytest.raises(ValueError, match="frozen"):
        config.durability = "segment_only"


# ------------------------------------------------------------------ the table of settings


def test_every_setting_is_described() -> None:
    """Scenario: the docs table is generated. Guarantee: each row has a type, a default, a
    description and its variable."""
    rows = settings()
    assert len(rows) >= 40
    assert all(row.description.endswith(".") and row.type and row.default for row in rows)
    assert len({row.name for row in rows}) == len(rows)


def test_the_table_shows_values_as_people_write_them() -> None:
    """Scenario: a reader copies a default from the table. Guarantee: sizes, durations and words
    in the form that the configuration accepts."""
    rows = {row.name: row for row in settings()}
    assert (rows["wal.max_size"].type, rows["wal.max_size"].default) == ("size", "256MiB")
    assert (rows["wal.flush_interval"].type, rows["wal.flush_interval"].default) == (
        "duration",
        "25ms",
    )
    assert rows["wal.flush"].type == "every | group | interval"
    assert rows["retention.size_cap"].default == "off"
    assert rows["wal.max_size"].env == "QUIVER_WAL__MAX_SIZE"


def test_every_default_in_the_table_can_be_given_back() -> None:
    """Scenario: all defaults set through the environment, as the table shows them. Guarantee: the
    same configuration: table, variables and model agree."""
    env = {row.env: row.default for row in settings() if row.default != "off"}
    env["QUIVER_VALIDATION"] = "full"
    assert Config.load(env=env) == Config()
    assert len(setting_names()) == len(settings())


def test_what_is_mapped_can_not_be_verified_always() -> None:
    """Scenario: both settings of reading, together. Guarantee: reads are verified each time by
    default; a mapping is verified once, also where a file of before only asks for a mapping;
    a promise that can't be kept is refused, with what to set instead."""
    assert Config().verified_always
    assert not Config(read_mode="mmap").verified_always
    assert not Config(read_mode="mmap", verify="once").verified_always
    assert not Config(verify="once").verified_always
    with pytest.raises(ConfigError, match=r"verify .*once with read_mode mmap.*to pread"):
        Config.load(env={}, read_mode="mmap", verify="always")
