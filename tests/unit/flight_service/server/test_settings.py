"""Settings of the service: the same names everywhere, and the store's beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flight_service.server.settings import (
    Settings,
    is_loopback,
    service_settings,
    setting_names,
)
from quiver.config import Config
from quiver.errors import ConfigError


def test_file_environment_and_arguments(tmp_path: Path) -> None:
    """Scenario: one setting in each source. Guarantee: same names; arguments win over the
    environment, that over the file, that over defaults."""
    file = tmp_path / "quiver.yaml"
    file.write_text("server: {port: 1, host: localhost}\nwal: {flush: every}\nhttp: {port: 2}\n")
    env = {"QUIVER_SERVER__PORT": "3", "QUIVER_DELIVERY__LEASE": "5s"}
    found = Settings.load(file, env, server__port=4)
    assert (found.server.port, found.server.host, found.http.port) == (4, "localhost", 2)
    assert (found.wal.flush, found.delivery.lease) == ("every", 5.0)
    assert Settings.load(file, env).server.port == 3


def test_streams_have_the_servers_defaults_and_their_own() -> None:
    """Scenario: defaults for all streams, and one stream's own. Guarantee: laid over one
    another, setting by setting; the service's sections are no stream's business."""
    settings = Settings.load(env={}, wal__flush="every", segment__target_size="1MiB")
    config = settings.store_config({"segment": {"max_bundles": 7}})
    assert type(config) is Config
    assert (config.wal.flush, config.segment.target_size) == ("every", 1 << 20)
    assert config.segment.max_bundles == 7
    with pytest.raises(ConfigError, match=r"server .* is not a setting"):
        settings.store_config({"server": {"root": "/"}})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"server__prot": 1}, "server.prot"),
        ({"server__port": 70_000}, "at most 65,535"),
        ({"delivery__poison": "eat"}, "delivery.poison"),
        ({"calls__max_calls": 0}, "at least 1"),
        ({"nonsense": 1}, "nonsense .* is not a setting"),
        ({"tls__cert": "a.pem"}, "come together"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], says: str) -> None:
    """Scenario: settings that can't be. Guarantee: the error names the setting."""
    with pytest.raises(ConfigError, match=says):
        Settings.load(env={}, **values)


def test_every_setting_is_documented() -> None:
    """Scenario: the table of settings. Guarantee: each has a meaning, a type, a default and
    a variable; names are unique, the store's included."""
    for row in service_settings():
        assert row.description.endswith((".", "`"))
        assert row.type
        assert row.default
        assert row.env == "QUIVER_" + row.name.replace(".", "__").upper()
    assert len(setting_names()) == len(set(setting_names()))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_loopback_is_known(host: str, loopback: bool) -> None:
    """Scenario: addresses. Guarantee: only what nobody else can reach counts as loopback."""
    assert is_loopback(host) is loopback
