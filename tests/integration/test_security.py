"""TLS and tokens between containers."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import MakeProject
from tests.integration.engine import docker, eventually
from tests.integration.project import Project

SERVER = "grpc+tls://quiver:8815"
TOKENS = {"producer": "p" * 32, "consumer": "c" * 32}
GRANTS = {"producer": "[put, admin]", "consumer": "[subscribe]"}


@pytest.fixture
def secured(make_project: MakeProject, tmp_path: Path) -> Project:
    """A server with a certificate and two principals, each with one thing it may do."""
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o755)
    make_certificate(keys)
    entries = [
        f"  {name}:\n    token: sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"
        f'    grants:\n      - {{verbs: {GRANTS[name]}, streams: ["t"]}}\n'
        for name, token in TOKENS.items()
    ]
    (keys / "auth.yaml").write_text("principals:\n" + "".join(entries))
    for file in keys.iterdir():
        file.chmod(0o644)  # the container's user is not ours
    project = make_project(
        settings={
            "server.insecure": "false",
            "http.host": "127.0.0.1",  # HTTP has no tokens: for the health check alone
            "tls.cert": "/keys/server.pem",
            "tls.key": "/keys/server.key",
            "auth.file": "/keys/auth.yaml",
        },
        overlay={"services": {"quiver": {"volumes": [f"{keys}:/keys:ro"]}}},
    )
    project.compose("up", "-d", "--no-build", "quiver")
    server = project.container("quiver")
    eventually(lambda: project.state(server)["Health"]["Status"] == "healthy", "healthy")
    return project


@pytest.mark.timeout(300)
def test_only_who_has_a_token_gets_anything(secured: Project, tmp_path: Path) -> None:
    """Scenario: containers with the right token, without one, with a wrong one, without TLS,
    with a token for something else, and one that doesn't trust the server. Guarantee: the
    first put and receive; the others get nothing but a refusal that says why.

    Seen to fail: a caller without a token is anybody."""
    trust = ("--volume", f"{tmp_path / 'keys'}:/keys:ro", "--env", "QUIVER_CA=/keys/ca.pem")
    producing = (*trust, "--env", f"QUIVER_TOKEN={TOKENS['producer']}")
    consuming = (*trust, "--env", f"QUIVER_TOKEN={TOKENS['consumer']}")
    put = ("producer.py", SERVER, "t", "p")
    promised = secured.finished(secured.program("producer", *put, options=producing)).promised
    assert len(promised) == 100
    reader = secured.program("reader", "subscriber.py", SERVER, "t", "r", options=consuming)
    eventually(lambda: len(secured.journal(reader).acked) == 100, "the consumer has them")

    stranger = secured.run("stranger", ["sleep", "infinity"], options=trust)
    told = {
        name: refused(stranger, *words)
        for name, words in {
            "put": ("put", "t", "/keys/auth.yaml", "--format", "csv", "--server", SERVER),
            "get": ("get", "t", "--server", SERVER),
            "subscribe": ("subscribe", "t", "--as", "r", "--server", SERVER),
            "tail": ("tail", "t", "--server", SERVER),
            "streams": ("streams", "--server", SERVER),
            "status": ("status", "--server", SERVER),
            "wrong": ("streams", "--server", SERVER, "--token", "w" * 32),
            "clear": ("streams", "--server", "grpc://quiver:8815"),
            "in clear": ("streams", "--server", "grpc://quiver:8815", "--token", "w" * 32),
        }.items()
    }
    for name in ("put", "get", "subscribe", "tail", "streams", "status"):
        assert "QUIVER_TOKEN" in told[name], told[name]
    assert "no Quiver server answers" in told["clear"]
    assert "would travel in the clear" in told["in clear"]
    assert not any("p/1" in said or TOKENS["producer"] in said for said in told.values())

    other = secured.run("other", ["sleep", "infinity"], options=consuming)
    assert "may not" in refused(other, "get", "t", "--server", SERVER)
    assert "may not" in refused(other, "streams", "--create", "u", "--server", SERVER)
    doubter = secured.run("doubter", ["sleep", "infinity"], options=producing[-2:])
    assert "certificate" in refused(doubter, "streams", "--server", SERVER).lower()

    page = "import urllib.request; urllib.request.urlopen('http://quiver:8816/status', timeout=5)"
    asked = docker("exec", stranger, "python", "-c", page, check=False)
    assert "Connection refused" in asked

    assert secured.stop(reader).refs == {key: {ref} for key, ref in promised.items()}
    log = docker("logs", secured.container("quiver"))
    assert "quiver.server.call_denied" in log
    assert not any(token in log for token in TOKENS.values())


def refused(container: str, *words: str) -> str:
    """Run a command that must be refused; what it said."""
    ask = ["docker", "exec", container, "quiver", *words]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, (words, done.stdout, done.stderr)
    assert not done.stdout.strip(), (words, done.stdout)
    assert "Traceback" not in done.stderr
    return done.stderr


def make_certificate(where: Path) -> None:
    """A CA, and a certificate of it for the name the other containers use."""
    authority = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=TestCA"
    request = "req -newkey rsa:2048 -nodes -subj /CN=quiver -addext subjectAltName=DNS:quiver"
    signing = "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
    for step in (
        f"{authority} -keyout ca.key -out ca.pem",
        f"{request} -keyout server.key -out server.csr",
        f"{signing} -copy_extensions copy -out server.pem",
    ):
        subprocess.run(["openssl", *step.split()], cwd=where, check=True, capture_output=True)
    (where / "ca.key").unlink()
