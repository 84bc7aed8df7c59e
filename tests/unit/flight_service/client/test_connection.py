"""Addresses, and what may travel to them."""

from __future__ import annotations

import pytest

from flight_service.client.connection import Address, Connection
from flight_service.client.errors import BadRequest, Closed


@pytest.mark.parametrize(
    ("url", "location", "tls", "local"),
    [
        ("grpc://127.0.0.1:8815", "grpc+tcp://127.0.0.1:8815", False, True),
        ("quiver://localhost", "grpc+tcp://localhost:8815", False, True),
        ("grpc+tcp://10.0.0.7:1", "grpc+tcp://10.0.0.7:1", False, False),
        ("grpc+tls://q.example.org", "grpc+tls://q.example.org:8815", True, False),
        ("quiver+tls://q.example.org:9/", "grpc+tls://q.example.org:9", True, False),
        ("grpc://[::1]:8815", "grpc+tcp://[::1]:8815", False, True),
        ("grpc+unix:///run/quiver.sock", "grpc+unix:///run/quiver.sock", False, True),
    ],
)
def test_addresses_are_read(url: str, location: str, tls: bool, local: bool) -> None:
    """Every spelling of the documentation, and the default port."""
    address = Address.parse(url)
    assert (address.location, address.tls, address.local) == (location, tls, local)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8815", "http://host", "grpc://", "grpc://host/telemetry", "grpc://h:x", ""]
)
def test_other_addresses_are_refused_with_advice(url: str) -> None:
    """Mistakes are told before anything is connected."""
    with pytest.raises(BadRequest, match=r"server|port"):
        Address.parse(url)


def test_a_token_does_not_travel_in_the_clear() -> None:
    """To another machine without TLS: refused, unless that is what is wanted."""
    with pytest.raises(BadRequest, match="in the clear"):
        Connection("grpc://quiver.example.org", token="secret")
    Connection("grpc://quiver.example.org", token="secret", insecure=True).close()
    Connection("grpc://127.0.0.1:1", token="secret").close()


def test_a_token_may_change_from_call_to_call() -> None:
    """A function is asked each time."""
    tokens = iter(["one", "two"])
    connection = Connection("grpc://127.0.0.1:1", token=lambda: next(tokens))
    headers = [connection.options().headers for _ in range(2)]
    connection.close()
    assert [dict(one)[b"authorization"] for one in headers] == [b"Bearer one", b"Bearer two"]


def test_a_closed_connection_says_so() -> None:
    """Closing ends waits and refuses calls; twice is fine."""
    connection = Connection("grpc://127.0.0.1:1")
    connection.close()
    connection.close()
    with pytest.raises(Closed):
        connection.pause(60)
    with pytest.raises(Closed):
        _ = connection.client
