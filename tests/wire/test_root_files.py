"""A server's small files where two things meet: a crash, a full disk, damage, a newer version."""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from flight_service.server import Server, Settings, streams
from flight_service.server.deleted import DeletedStreams
from quiver.clock import SystemClock
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import StorageFull
from quiver.format.checked_json import encode_checked, encode_title
from tests.wire.bare import act, fails, info, logs, put_slot
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_offline_roots import run
from tests.wire.test_streams import SMALL_STREAM, names

SMALLER = {"segment": {"target_size": "1MiB"}}
ROOTS = Path(__file__).parents[1] / "compat" / "0.1.0" / "roots"


class Killed(BaseException):
    """The process ends here."""


def killed(*_: Any, **__: Any) -> Any:
    raise Killed


def files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def is_recovered(server: Server) -> bool:
    return server.overview.recovered.wait(10)


def scrape(server: Server, name: str) -> dict[str, float]:
    """All series of a metric, by their labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    series = [line.rpartition(" ") for line in lines if line.startswith(f"{name}{{")]
    return {labels.removeprefix(name): float(value) for labels, _, value in series}


# Making a stream


@pytest.mark.parametrize("error", [Killed(), StorageFull("no space")])
def test_a_stream_is_made_whole_or_not_at_all(
    make_server: MakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """Scenario: a stream is deleted; making it again ends at any of the writes it takes, by a
    kill or a full disk; then a restart and a retry. Guarantee: the stream exists with all of its
    settings or not at all, the retry makes it, and no ref comes again."""
    server = make_server()
    with connect(server) as client:
        (old,) = put_slot(client, "x", [logs(1)])
        act(client, "delete_stream", stream="x", confirm="x", force=True)
    server.stop()
    data, before = tmp_path / "data", tmp_path / "before"
    shutil.copytree(data, before)
    for last in range(5):
        shutil.rmtree(data)
        shutil.copytree(before, data)
        server = make_server()
        made = not _create_until(server, monkeypatch, last, error)
        server.stop()
        server = make_server()
        with connect(server) as client:
            assert ("x" in names(client)) == made
            answer = act(client, "create_stream", stream="x", settings=SMALLER, if_not_exists=True)
            assert answer["created"] is not made
            assert act(client, "status", stream="x")["streams"]["x"]["state"] in ("open", "closed")
            (new,) = put_slot(client, "x", [logs(2)])
            assert new["ref"] > old["ref"]
            assert act(client, "status", stream="x")["streams"]["x"]["settings"] == SMALLER
        server.stop()
        assert run("verify", data).exit_code == 0
    assert made, "the last round is undisturbed"


def _create_until(
    server: Server, monkeypatch: pytest.MonkeyPatch, last: int, error: BaseException
) -> bool:
    """Make a stream on a disk that takes ``last`` more steps; whether it failed."""
    left = [last]

    def counted(step: Any) -> Any:
        def go(self: Disk, *arguments: Any) -> Any:
            if not left[0]:
                raise error
            left[0] -= 1
            return step(self, *arguments)

        return go

    with monkeypatch.context() as patched:
        for name in ("mkdir", "replace", "rename"):
            patched.setattr(Disk, name, counted(getattr(Disk, name)))
        if isinstance(error, Killed):
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        try:
            server.streams.create("x", SMALLER, if_not_exists=False)
        except (Killed, StorageFull):
            return True
    return False


def test_an_empty_stream_directory_gives_no_old_refs(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: a crash left the directory of a stream that was being made again. Guarantee: the
    restart removes it; the stream goes on behind its old numbers, and a kill does not hurt it."""
    server = make_server()
    with connect(server) as client:
        (old,) = put_slot(client, "x", [logs(1)])
        act(client, "delete_stream", stream="x", confirm="x", force=True)
    server.stop()
    place = tmp_path / "data" / "streams" / "x"
    (place / "store").mkdir(parents=True)
    (place / "service.json.tmp").write_text("half")
    server = make_server()
    with connect(server) as client:
        assert names(client) == {}
        assert put_slot(client, "x", [logs(2)])[0]["ref"] > old["ref"]
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    server.stop()
    with connect(make_server(server__root=str(tmp_path / "killed"))) as client:
        assert len(info(client, stream="x").endpoints) == 1


def test_a_kill_during_an_upgrade_leaves_the_stream_served(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a stream of 0.1.0 without a service file is opened and the process killed as
    soon as its store is. Guarantee: the next start serves it."""
    with tarfile.open(ROOTS / "stopped.tar.xz") as packed:
        packed.extractall(tmp_path / "old", filter="data")
    (root,) = (path.parent for path in (tmp_path / "old").rglob("streams"))
    for place in (root / "streams").iterdir():
        if place.name != "bare":
            shutil.rmtree(place)
    settings = Settings.load(env={}, server__root=str(root), reserve=0)
    with monkeypatch.context() as patched:
        patched.setattr(streams, "ServedStream", killed)
        opened = streams.Streams(settings, SystemClock(), lambda poison: None)
        with pytest.raises(Killed), opened.use("bare"):
            pass
        opened.close()
    with connect(make_server(server__root=str(root))) as client:
        assert len(info(client, stream="bare").endpoints) >= 1


# service.json


def test_a_flipped_version_is_damage(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: one bit of a service file's version flips. Guarantee: damage, not a newer
    version: `repair` mends it."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
    server.stop()
    root = tmp_path / "data"
    path = root / "streams" / "a" / "service.json"
    path.write_bytes(path.read_bytes().replace(b'{"v":2', b'{"v":3', 1))
    assert run("verify", root).exit_code == 2
    with connect(make_server()) as client:
        fails("stream_damaged", info, client, stream="a")
    assert run("repair", root, "--yes").exit_code == 0
    assert run("verify", root).exit_code == 0


def test_a_stream_refused_by_its_settings_is_seen(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a sound service file has a setting that this version doesn't know. Guarantee:
    the stream is refused with the reason, and health, status, metrics and `verify` say so;
    nothing of it is touched, not by `repair` either; the others are served."""
    server = make_server()
    with connect(server) as client:
        for name in "ab":
            put_slot(client, name, [logs(1)])
    server.stop()
    root = tmp_path / "data"
    path = root / "streams" / "a" / "service.json"
    body = json.loads(path.read_text())["body"]
    body["settings"] = {"segment": {"from_the_future": 1}}
    path.write_bytes(encode_checked(body))
    before = files(path.parent)
    found = run("verify", root)
    assert found.exit_code == 3
    assert "segment.from_the_future" in found.stdout
    assert run("repair", root, "--yes").exit_code == 3
    server = make_server()
    assert is_recovered(server)
    with connect(server) as client:
        error = fails("invalid_config", info, client, stream="a")
        assert "segment.from_the_future" in error.message
        assert act(client, "health")["status"] == "degraded"
        assert "a" in act(client, "health")["details"]
        assert names(client) == {"a": "refused", "b": "open"}
        assert len(info(client, stream="b").endpoints) == 1
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as page:
        assert "quiver_server_streams_damaged 1.0" in page.read().decode()
    server.stop()
    after = files(path.parent)
    assert {path: after[path] for path in before} == before


def test_settings_that_fit_only_the_server_are_sound(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: a stream's settings agree with its server's, and not with the defaults.
    Guarantee: `verify`, which doesn't know the server's, finds nothing wrong."""
    small = {"wal__max_size": "16MiB", "wal__rotation_target": "1MiB", "limits__max_bundle": "1MiB"}
    server = make_server(**small, segment__target_size="1MiB")
    with connect(server) as client:
        act(client, "create_stream", stream="a", settings={"wal": {"max_size": "8MiB"}})
        put_slot(client, "a", [logs(1)])
    server.stop()
    assert run("verify", tmp_path / "data").exit_code == 0


def test_a_damaged_stream_without_data_is_found(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: the service file of a stream that nobody has used yet is damaged. Guarantee:
    `verify` finds it among the used ones."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
        act(client, "create_stream", stream="unused", settings=SMALL_STREAM)
    server.stop()
    root = tmp_path / "data"
    assert run("verify", root).exit_code == 0
    path = root / "streams" / "unused" / "service.json"
    path.write_text(path.read_text().replace("64KiB", "94KiB"))
    assert run("verify", root).exit_code == 2
    assert not json.loads(run("verify", root, "--json").stdout)["stores"]["unused"]["sound"]


@pytest.mark.parametrize(
    "subscribers",
    [
        {"s": {"policy": {}, "failures": [[0, 0, "1"]]}},
        {"s": {"policy": {"max_deliveries": "3"}}},
        {"s": []},
    ],
)
def test_nonsense_in_a_file_without_a_checksum_stops_nobody(
    make_server: MakeServer, tmp_path: Path, subscribers: Any
) -> None:
    """Scenario: a service file of 0.1.0, which has no checksum, holds values of the wrong kind.
    Guarantee: the stream is refused as damaged, the server gets ready and serves the others."""
    server = make_server()
    with connect(server) as client:
        for name in "ab":
            put_slot(client, name, [logs(1)])
    server.stop()
    path = tmp_path / "data" / "streams" / "a" / "service.json"
    path.write_text(json.dumps({"v": 1, "settings": {}, "subscribers": subscribers}))
    server = make_server()
    assert is_recovered(server)
    with connect(server) as client:
        fails("stream_damaged", info, client, stream="a")
        assert len(info(client, stream="b").endpoints) == 1


# failures.log


@pytest.fixture
def failed(make_server: MakeServer, tmp_path: Path) -> Path:
    """A root as a kill leaves it: one failed delivery is on record."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
        act(client, "register", stream="a", subscriber="s")
        act(client, "register", stream="a", subscriber="idle")
        claimed = act(client, "claim", stream="a", subscriber="s")
        refs = [one["ref"] for one in claimed["bundles"]]
        act(client, "defer", stream="a", subscriber="s", refs=refs, delay_ms=0, reason="no")
        (stream,) = server.streams.opened()
        stream.save_failures()
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    server.stop()
    return tmp_path / "killed"


def test_newer_failures_refuse_the_stream_untouched(failed: Path, make_server: MakeServer) -> None:
    """Scenario: a later Quiver wrote the file of failed deliveries, and was killed. Guarantee:
    the stream is refused by name and not a byte of it changes, its store included."""
    path = failed / "streams" / "a" / "failures.log"
    path.write_bytes(encode_title("quiver failures", 2))
    before = files(failed / "streams")
    assert run("verify", failed).exit_code == 3
    server = make_server(server__root=str(failed))
    with connect(server) as client:
        fails("unsupported_version", info, client, stream="a")
    server.stop()
    assert files(failed / "streams") == before


@pytest.mark.parametrize("old", [b"quiver failures 1", b"\n"])
def test_damaged_failures_refuse_nothing(failed: Path, make_server: MakeServer, old: bytes) -> None:
    """Scenario: a bit flips in the title, or in the last byte. Guarantee: `verify` says so, the
    stream is served, and `repair` makes it sound."""
    path = failed / "streams" / "a" / "failures.log"
    data = path.read_bytes()
    at = data.rindex(old) + len(old) - 1
    path.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
    assert run("verify", failed).exit_code == 2
    server = make_server(server__root=str(failed))
    with connect(server) as client:
        assert len(info(client, stream="a").endpoints) == 1
    server.stop()
    assert run("repair", failed, "--yes").exit_code == 0
    assert run("verify", failed).exit_code == 0


def test_what_came_back_is_in_the_first_scrape(failed: Path, make_server: MakeServer) -> None:
    """Scenario: a restart, before any subscriber is back. Guarantee: the gauges that alerts
    use are there for each subscriber, with what is on record."""
    server = make_server(server__root=str(failed))
    assert is_recovered(server)
    found = scrape(server, "quiver_server_redelivering_bundles")
    assert found == {'{stream="a",subscriber="idle"}': 0, '{stream="a",subscriber="s"}': 1}
    assert set(scrape(server, "quiver_server_in_flight_bundles").values()) == {0}
    throttled = scrape(server, "quiver_ingest_throttle_total")
    assert len(throttled) == 5
    assert set(throttled.values()) == {0}


# deleted.json


@pytest.fixture
def root(make_server: MakeServer, tmp_path: Path) -> Path:
    """Stream ``a``, and ``x``, which was deleted after ref 0.0."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
        put_slot(client, "x", [logs(1)])
        act(client, "delete_stream", stream="x", confirm="x", force=True)
    server.stop()
    return tmp_path / "data"


def test_a_flipped_version_of_the_list_stops_nobody(root: Path, make_server: MakeServer) -> None:
    """Scenario: one bit of the version of ``deleted.json`` flips. Guarantee: `verify` and
    `repair` call it damage; the server starts, and no ref comes again."""
    path = root / "deleted.json"
    path.write_bytes(path.read_bytes().replace(b'{"v":2', b'{"v":3', 1))
    assert run("verify", root).exit_code == 2
    planned = run("repair", root)
    assert planned.exit_code == 2
    assert "deleted.json" in planned.stdout
    with connect(make_server()) as client:
        assert put_slot(client, "x", [logs(2)])[0]["ref"] > [0, 0]


def test_repair_replaces_a_damaged_list(root: Path, make_server: MakeServer) -> None:
    """Scenario: ``deleted.json`` is damaged and repaired without a server. Guarantee: a copy is
    kept, the root is sound, no ref comes again; under a running server it is refused."""
    path = root / "deleted.json"
    damaged = path.read_bytes().replace(b'"x":1', b'"x":0')
    server = make_server()
    path.write_bytes(damaged)
    assert run("repair", root, "--yes").exit_code == 1
    server.stop()
    assert run("repair", root, "--yes").exit_code == 0
    assert (root / "deleted.json.damaged").read_bytes() == damaged
    assert run("verify", root).exit_code == 0
    with connect(make_server()) as client:
        assert put_slot(client, "x", [logs(2)])[0]["ref"][0] > 1_000_000


def test_a_newer_list_refuses_creation_alone(root: Path, make_server: MakeServer) -> None:
    """Scenario: a later Quiver wrote ``deleted.json``. Guarantee: streams are served; creating
    and deleting are refused with the reason, health says so, and the file stays as it is."""
    path = root / "deleted.json"
    newer = b'{"v":3,"crc32":"00000000","body":{}}'
    path.write_bytes(newer)
    assert run("verify", root).exit_code == 3
    server = make_server()
    assert is_recovered(server)
    with connect(server) as client:
        assert put_slot(client, "a", [logs(2)])[0]["status"] == "ok"
        error = fails("unsupported_version", act, client, "create_stream", stream="x")
        assert "deleted.json" in error.message
        fails("unsupported_version", put_slot, client, "x", [logs(2)])
        fails(
            "unsupported_version", act, client, "delete_stream", stream="a", confirm="a", force=True
        )
        assert put_slot(client, "a", [logs(3)])[0]["status"] == "ok"
        assert "deleted.json" in act(client, "health")["details"]
    server.stop()
    assert path.read_bytes() == newer


@pytest.mark.parametrize("step", ["replace", "rename"])
def test_a_kill_while_the_list_is_replaced(
    root: Path, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Scenario: ``deleted.json`` is damaged, and the server killed at any step of replacing it.
    Guarantee: no ref comes again."""
    path = root / "deleted.json"
    path.write_bytes(path.read_bytes().replace(b'"x":1', b'"x":3'))
    real = getattr(Disk, step)
    for last in range(3):
        left = [last]

        def go(self: Disk, *arguments: Any, left: list[int] = left) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return real(self, *arguments)

        copy = root.parent / f"copy-{last}"
        shutil.copytree(root, copy)
        with monkeypatch.context() as patched:
            patched.setattr(Disk, step, go)
            with contextlib.suppress(Killed):
                DeletedStreams(Disk(PosixDisk(copy)), SystemClock())
        with connect(make_server(server__root=str(copy))) as client:
            assert put_slot(client, "x", [logs(2)])[0]["ref"] > [0, 0]


@pytest.mark.parametrize("others", [True, False])
def test_a_list_that_is_gone_is_noticed(root: Path, make_server: MakeServer, others: bool) -> None:
    """Scenario: ``deleted.json`` is removed, with and without streams left. Guarantee: `verify`
    says so where there is a stream to look at, and no ref comes again."""
    (root / "deleted.json").unlink()
    if others:
        assert run("verify", root).exit_code == 2
    else:
        shutil.rmtree(root / "streams" / "a")
    with connect(make_server()) as client:
        assert put_slot(client, "x", [logs(2)])[0]["ref"] > [0, 0]
    assert run("verify", root).exit_code == 0


def test_a_damaged_stream_that_began_far_behind_is_deleted(
    root: Path, make_server: MakeServer
) -> None:
    """Scenario: a stream begins far behind and its files are damaged; it is deleted by force and
    made again. Guarantee: no ref comes again."""
    (root / "deleted.json").unlink()
    server = make_server()
    with connect(server) as client:
        (old,) = put_slot(client, "x", [logs(2)])
    server.stop()
    place = root / "streams" / "x"
    (place / "service.json").write_text("nonsense")
    shutil.rmtree(place / "store" / "segments")
    server = make_server()
    assert is_recovered(server)
    with connect(server) as client:
        act(client, "delete_stream", stream="x", confirm="x", force=True)
        assert put_slot(client, "x", [logs(3)])[0]["ref"] > old["ref"]
