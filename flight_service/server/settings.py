"""Every setting of the service, under the same name in file, environment and flags.

The store's own settings (``wal.*``, ``segment.*`` …, see :mod:`quiver.config`) stand
beside the service's and are the defaults of every stream; ``create_stream`` may override
them for one.  So one file, and one prefix in the environment, configure everything::

    server:  {root: ./quiver-data, port: 8815}
    wal:     {max_size: 512MiB}

    QUIVER_SERVER__PORT=8815  QUIVER_WAL__MAX_SIZE=512MiB

No file is needed: the defaults serve ``./quiver-data`` on loopback, without TLS and
without tokens.  Anywhere else TLS is on and callers must say who they are, unless
``server.insecure`` says that somebody has thought about it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from quiver.config import Config
from quiver.config.model import Setting, describe
from quiver.config.model import settings as store_settings
from quiver.config.problems import explain
from quiver.config.sections import Duration, Section, Size
from quiver.config.sources import NESTING, Layers, env_name, nested, read_environment, read_file
from quiver.errors import ConfigError
from quiver.units import GIB, MIB

Poison = Literal["dead_letter", "drop", "block"]


class ServerSection(Section):
    """Where it listens and what it keeps."""

    prefix: ClassVar[str] = "server"

    root: str = Field(default="quiver-data", description="Directory of all streams.")
    host: str = Field(default="127.0.0.1", description="Address Flight listens on.")
    port: int = Field(default=8815, ge=0, le=65_535, description="Its port; 0: any free one.")
    insecure: bool = Field(
        default=False, description="Allow no TLS or no tokens on an address that isn't loopback."
    )
    auto_create: bool = Field(default=True, description="A put to an unknown stream makes it.")
    max_streams: int = Field(default=1_000, ge=1, le=10_000, description="Most streams.")
    max_open_streams: int = Field(
        default=256, ge=1, le=10_000, description="Streams open at a time; others are asleep."
    )
    idle_close: Duration = Field(
        default=300.0, gt=0, description="Close a stream that nobody used for so long."
    )
    disk_budget: Size | None = Field(
        default=None, ge=MIB, description="Disk space of all open streams together. Off."
    )
    memory: Size = Field(
        default=512 * MIB,
        ge=MIB,
        description="Memory for bundles not yet in a file, of all streams together.",
    )
    drain_timeout: Duration = Field(
        default=10.0, gt=0, le=600, description="Longest time from SIGTERM to exit."
    )
    flushers: int = Field(default=4, ge=1, le=64, description="Threads that sync logs.")
    workers: int = Field(default=2, ge=1, le=64, description="Threads that do upkeep.")


class HttpSection(Section):
    """Health, metrics and a status page beside Flight."""

    prefix: ClassVar[str] = "http"

    enabled: bool = Field(default=True, description="Serve /healthz, /readyz, /metrics, /status.")
    host: str = Field(default="127.0.0.1", description="Address HTTP listens on.")
    port: int = Field(default=8816, ge=0, le=65_535, description="Its port; 0: any free one.")


class TlsSection(Section):
    """Transport security of the Flight listener."""

    prefix: ClassVar[str] = "tls"

    cert: str | None = Field(default=None, description="PEM file with the certificate chain.")
    key: str | None = Field(default=None, description="PEM file with its private key.")
    client_ca: str | None = Field(
        default=None, description="PEM file: clients must show a certificate signed by these."
    )


class AuthSection(Section):
    """Who may call."""

    prefix: ClassVar[str] = "auth"

    file: str | None = Field(
        default=None, description="YAML file with principals, hashed tokens and grants."
    )
    reload: Duration = Field(default=1.0, gt=0, description="Look for changes this often.")


class CallsSection(Section):
    """What callers may use at a time."""

    prefix: ClassVar[str] = "calls"

    max_calls: int = Field(default=1_024, ge=1, le=100_000, description="Calls running at a time.")
    max_calls_per_principal: int = Field(
        default=512, ge=1, le=100_000, description="The same, for one principal."
    )
    put_window: int = Field(
        default=1_024, ge=1, le=65_536, description="Bundles of one DoPut without a receipt."
    )
    put_wait: Duration = Field(
        default=0.25, ge=0, le=30, description="Wait so long for room before answering `retry`."
    )
    read_bytes: Size = Field(
        default=GIB, ge=1, description="Most bytes one slot-mode DoGet may name."
    )


class DeliverySection(Section):
    """How subscribers are served unless they say otherwise."""

    prefix: ClassVar[str] = "delivery"

    lease: Duration = Field(default=30.0, ge=0.1, le=86_400, description="How long claims hold.")
    max_in_flight: int = Field(
        default=1_024, ge=1, le=65_536, description="Bundles claimed at a time."
    )
    max_in_flight_bytes: Size = Field(
        default=256 * MIB, ge=1, description="Bytes claimed at a time; one bundle anyway."
    )
    max_deliveries: int = Field(
        default=0, ge=0, le=1_000_000, description="Then a bundle is poison; 0: never."
    )
    poison: Poison = Field(default="dead_letter", description="What to do with poison.")
    backoff: Duration = Field(default=1.0, ge=0, le=86_400, description="After a first failure.")
    backoff_max: Duration = Field(
        default=300.0, ge=0, le=86_400, description="Longest delay; it doubles each time."
    )


SECTIONS: dict[str, type[Section]] = {
    section.prefix: section
    for section in (
        ServerSection,
        HttpSection,
        TlsSection,
        AuthSection,
        CallsSection,
        DeliverySection,
    )
}


class Settings(Config):
    """All settings of a server: the service's sections, and the defaults of its streams."""

    server: ServerSection = Field(default_factory=ServerSection, description="The server.")
    http: HttpSection = Field(default_factory=HttpSection, description="HTTP.")
    tls: TlsSection = Field(default_factory=TlsSection, description="TLS.")
    auth: AuthSection = Field(default_factory=AuthSection, description="Authentication.")
    calls: CallsSection = Field(default_factory=CallsSection, description="Calls.")
    delivery: DeliverySection = Field(default_factory=DeliverySection, description="Delivery.")

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """From a file, the environment (``os.environ`` unless given) and arguments."""
        layers = Layers()
        if path is not None:
            layers.add(read_file(path), str(path))
        variables = read_environment(os.environ if env is None else env, setting_names())
        for dotted, value in variables.items():
            layers.add(nested({dotted: value}), env_name(dotted))
        layers.add(nested(overrides, NESTING), "argument")
        try:
            loaded = cls.model_validate(layers.values)
        except ValidationError as error:
            raise explain(error, cls.prefix, cls.known_names(), layers) from None
        loaded.check_security()
        return loaded

    @classmethod
    def known_names(cls) -> list[str]:
        return [*setting_names(), *cls.model_fields]

    def check_security(self) -> None:
        """TLS and tokens are a must wherever others could reach the port."""
        tls = self.tls
        if (tls.cert is None) != (tls.key is None):
            raise ConfigError("tls.cert and tls.key come together.", setting="tls.cert")
        if tls.client_ca is not None and tls.cert is None:
            raise ConfigError("tls.client_ca needs tls.cert and tls.key.", setting="tls.client_ca")
        if self.server.insecure or is_loopback(self.server.host):
            return
        if tls.cert is None:
            raise ConfigError(
                f"server.host {self.server.host} is not loopback and TLS is off.",
                advice="Set tls.cert and tls.key, or server.insecure if that is meant.",
                setting="server.insecure",
            )
        if self.auth.file is None and tls.client_ca is None:
            raise ConfigError(
                f"server.host {self.server.host} is not loopback and anybody may call.",
                advice="Set auth.file or tls.client_ca, or server.insecure if that is meant.",
                setting="server.insecure",
            )

    def store_config(self, overrides: Mapping[str, Any] | None = None) -> Config:
        """The settings of one stream: the defaults, with its own on top."""
        layers = Layers()
        own = self.model_dump(exclude=set(SECTIONS), exclude_unset=True)
        layers.add(own, "server settings")
        layers.add(dict(overrides or {}), "stream settings")
        try:
            return Config.model_validate(layers.values)
        except ValidationError as error:
            raise explain(error, Config.prefix, Config.known_names(), layers) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def service_settings() -> list[Setting]:
    """The service's own settings, for docs, ``--help`` and tests."""
    return [
        describe(section, f"{prefix}.{key}", key)
        for prefix, section in SECTIONS.items()
        for key in section.model_fields
    ]


def setting_names() -> list[str]:
    """The dotted names of all settings, the store's included."""
    return [row.name for row in (*service_settings(), *store_settings())]
