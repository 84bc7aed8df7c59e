"""Our client and guarded servers: tokens, TLS, certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from flight_service.client import AccessDenied, Disconnected, connect
from flight_service.server import Server
from flight_service.server.auth import hash_token
from tests.wire.bare import logs
from tests.wire.conftest import MakeServer

PUTTER, READER, ADMIN = ("putter-" + "x" * 40, "reader-" + "x" * 40, "admin-" + "x" * 40)


def principals(path: Path, tokens: dict[str, tuple[str, list[str]]]) -> Path:
    """An auth file: names with a token and verbs each, on all streams."""
    content = {
        name: {"token": hash_token(token), "grants": [{"verbs": verbs, "streams": ["*"]}]}
        for name, (token, verbs) in tokens.items()
    }
    path.write_text(yaml.safe_dump({"principals": content}))
    return path


@pytest.fixture
def guarded(make_server: MakeServer, tmp_path: Path) -> Server:
    path = principals(
        tmp_path / "auth.yaml",
        {
            "putter": (PUTTER, ["put"]),
            "reader": (READER, ["read", "subscribe"]),
            "admin": (ADMIN, ["put", "read", "subscribe", "admin"]),
        },
    )
    return make_server(auth__file=str(path), auth__reload=0.01)


def url(server: Server) -> str:
    return f"grpc://127.0.0.1:{server.port}"


def test_without_a_token_nothing_opens(guarded: Server) -> None:
    """No token, or a wrong one: said at once, by connect itself."""
    for token in (None, "wrong-" + "x" * 40):
        with pytest.raises(AccessDenied) as caught:
            connect(url(guarded), token=token)
        assert caught.value.code == "unauthenticated"


def test_each_token_has_its_own_rights(guarded: Server) -> None:
    """Who may put may not read, and the other way round; writers and subscriptions say so
    without trying again and again."""
    with connect(url(guarded), token=ADMIN) as admin:
        admin.create_stream("t")
    with connect(url(guarded), token=PUTTER) as putter:
        receipt = putter.stream("t").put({"Logs": logs(1)})
        with pytest.raises(AccessDenied):
            putter.stream("t").get(receipt.ref)
        with pytest.raises(AccessDenied):
            putter.stream("t").subscribe("s")
    with connect(url(guarded), token=READER) as reader:
        with reader.stream("t").subscribe("s", follow=False) as bundles:
            (bundle,) = list(bundles)
            bundle.ack()
        with pytest.raises(AccessDenied):
            reader.stream("t").put({"Logs": logs(2)}, timeout=10)


def test_a_token_that_changes_is_asked_for_each_call(guarded: Server, tmp_path: Path) -> None:
    """A function as token: the server's file changes, the client goes on with the new one."""
    token = [ADMIN]
    fresh = "fresh-" + "x" * 40
    with connect(url(guarded), token=lambda: token[0]) as client:
        client.create_stream("t").put({"Logs": logs(1)})
        principals(tmp_path / "auth.yaml", {"admin": (fresh, ["put", "read", "admin"])})
        token[0] = fresh
        deadline = 200
        while deadline:
            try:
                assert len(list(client.stream("t").read())) == 1
                break
            except AccessDenied:
                deadline -= 1
                client.pause(0.05)
        assert deadline


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that trusts itself, and a client's signed by it."""
    where = tmp_path_factory.mktemp("client-tls")

    def openssl(line: str) -> None:
        subprocess.run(["openssl", *line.split()], cwd=where, check=True, capture_output=True)

    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca")
    for name, alternative in (("server", "DNS:localhost"), ("client", "DNS:robot.internal")):
        request = f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr"
        openssl(f"{request} -subj /CN={name}")
        (where / "ext").write_text(f"subjectAltName={alternative}\n")
        sign = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        openssl(f"{sign} -out {name}.pem -extfile ext")
    return where


def test_tls_with_paths_and_with_bytes(make_server: MakeServer, certificates: Path) -> None:
    """The certificate's authority as a path or as its content; without it, no connection."""
    server = make_server(
        tls__cert=str(certificates / "server.pem"), tls__key=str(certificates / "server.key")
    )
    where = f"grpc+tls://localhost:{server.port}"
    authority = certificates / "ca.pem"
    for ca in (authority, str(authority), authority.read_bytes()):
        with connect(where, tls_ca=ca) as client:
            client.stream("t").put({"Logs": logs(1)})
    with pytest.raises(Disconnected):
        connect(where, wait=0.2)
    with pytest.raises(Disconnected):
        connect(f"grpc://localhost:{server.port}", wait=0.2)


def test_mutual_tls(make_server: MakeServer, certificates: Path) -> None:
    """The server asks for a certificate: with one the client is in, without it isn't."""
    server = make_server(
        tls__cert=str(certificates / "server.pem"),
        tls__key=str(certificates / "server.key"),
        tls__client_ca=str(certificates / "ca.pem"),
    )
    where = f"grpc+tls://localhost:{server.port}"
    with connect(
        where,
        tls_ca=certificates / "ca.pem",
        tls_cert=certificates / "client.pem",
        tls_key=certificates / "client.key",
    ) as client:
        client.stream("t").put({"Logs": logs(1)})
    with pytest.raises(Disconnected):
        connect(where, tls_ca=certificates / "ca.pem", wait=0.2)
