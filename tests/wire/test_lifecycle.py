"""Start, stop and look: real processes, signals, HTTP."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.server import Server, Settings
from quiver.errors import ConfigError, StoreLocked
from tests.wire.bare import act, command, get, info, logs, put_slot
from tests.wire.conftest import SMALL, MakeServer, connect
from tests.wire.process import ServerProcess
from tests.wire.test_exchange import eventually


def fetch(port: int | None, path: str) -> tuple[int, str]:
    """One page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data", {"server.drain_timeout": "2s"})
    process.start()
    yield process
    process.kill()


def test_pages(server: Server, client: flight.FlightClient) -> None:
    """Scenario: every page of the HTTP side. Guarantee: health, readiness, metrics with the
    documented names, status; nothing else."""
    put_slot(client, "t", [logs(1, 2, 3)])
    act(client, "register", stream="t", subscriber="s")
    port = server.http_port
    assert fetch(port, "/healthz") == (200, "ok\n")
    eventually(lambda: fetch(port, "/readyz")[0] == 200)
    status, metrics = fetch(port, "/metrics")
    assert status == 200
    assert 'quiver_ingest_bundles_total{stream="t"} 1.0' in metrics
    assert 'quiver_ingest_rows_total{stream="t"} 3.0' in metrics
    assert 'quiver_subscriber_lag_bundles{stream="t",subscriber="s"} 1.0' in metrics
    assert "quiver_server_calls " in metrics
    assert 'le="+Inf"' in metrics
    body = json.loads(fetch(port, "/status")[1])
    assert body["streams"]["t"]["bundles"] == 1
    assert "<td>t<td>open" in fetch(port, "/")[1]
    assert fetch(port, "/etc/passwd")[0] == 404


def test_every_line_of_metrics_is_well_formed(server: Server, client: flight.FlightClient) -> None:
    """Scenario: metrics read by Prometheus' own parser. Guarantee: all of it is understood,
    counters end in _total, and a gauge of the same name is still a gauge."""
    parser = pytest.importorskip("prometheus_client.parser")
    put_slot(client, "t", [logs(1)])
    families = list(parser.text_string_to_metric_families(fetch(server.http_port, "/metrics")[1]))
    assert len(families) > 20
    for family in families:
        if family.type == "counter":
            assert all(one.name.endswith("_total") for one in family.samples)
    kinds = {(one.name, family.type) for family in families for one in family.samples}
    assert {("quiver_wal_bytes", "gauge"), ("quiver_wal_bytes_total", "counter")} <= kinds


def test_slow_http_clients_are_cut_off_others_served(server: Server) -> None:
    """Scenario: connections that send nothing. Guarantee: pages are still served."""
    idle = [socket.create_connection(("127.0.0.1", server.http_port or 0)) for _ in range(10)]
    assert fetch(server.http_port, "/healthz")[0] == 200
    for one in idle:
        one.close()


def test_a_busy_port_is_said_clearly(server: Server, tmp_path: Path) -> None:
    """Scenario: Flight's or HTTP's port is taken. Guarantee: an error that names it and the
    setting; the directory is free again."""
    for setting, port in (("server__port", server.port), ("http__port", server.http_port)):
        settings = {**SMALL, "server__root": str(tmp_path / "other"), setting: port}
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Server(Settings.load(env={}, **settings))


def test_a_root_has_one_server(server: Server) -> None:
    """Scenario: a second server on the same root. Guarantee: refused, naming who has it."""
    settings = {**SMALL, "server__root": server.settings.server.root}
    with pytest.raises(StoreLocked, match="another process"):
        Server(Settings.load(env={}, **settings))


def test_sigterm_drains_and_exits_cleanly(process: ServerProcess, tmp_path: Path) -> None:
    """Scenario: SIGTERM with nothing stalled. Guarantee: exit status 0, everything flushed:
    the next start replays nothing."""
    with flight.FlightClient(process.url) as client:
        put_slot(client, "t", [logs(n) for n in range(10)])
    assert process.terminate(10) == 0
    process.start()
    with flight.FlightClient(process.url) as client:
        eventually(lambda: act(client, "health")["status"] == "ok")
        assert len(get(client, info(client, stream="t").endpoints[0].ticket)) == 10
        recovery = act(client, "status", stream="t")["streams"]["t"]["recovery"]
        assert recovery["bundles_replayed"] == 0


def test_sigterm_exits_in_time_with_a_stalled_reader(process: ServerProcess) -> None:
    """Scenario: a DoGet reader, a live subscriber and a producer that all stand still, then
    SIGTERM. Guarantee: the process is gone within its deadline, and nothing durable is
    lost."""
    big = pa.record_batch({"x": pa.array(range(200_000), pa.int64())})
    client = flight.FlightClient(process.url)
    put_slot(client, "t", [big] * 20)
    stalled: list[Any] = [client.do_get(info(client, stream="t").endpoints[0].ticket)]
    stalled[0].read_chunk()
    stalled.append(client.do_exchange(command(stream="t", subscriber="s")))
    stalled.append(client.do_put(command(stream="t", mode="slot", slot="Logs"), big.schema))
    status = process.terminate(10)
    assert status in (0, 3)
    stalled.clear()
    client.close()
    process.start()
    with flight.FlightClient(process.url) as client:
        found = info(client, stream="t", max_bytes=1 << 40)
        assert len(get(client, found.endpoints[0].ticket)) == 20


def test_draining_refuses_new_work(make_server: MakeServer) -> None:
    """Scenario: the server stops while a producer's call is open. Guarantee: further
    bundles are answered `retry` with the reason; what was answered before holds."""
    server = make_server(server__drain_timeout=5)
    client = connect(server)
    where = command(stream="t", mode="slot", slot="Logs")
    writer, reader = client.do_put(where, logs().schema)
    writer.write_batch(logs(1))
    assert b'"ok"' in reader.read().to_pybytes()
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    eventually(lambda: server.overview.stopping())
    writer.write_batch(logs(2))
    answer = json.loads(reader.read().to_pybytes())["receipts"][0]
    assert (answer["status"], answer["code"]) == ("retry", "draining")
    assert fetch(server.http_port, "/readyz")[0] == 503
    writer.close()
    stopping.join(10)
    assert not stopping.is_alive()
    client.close()


def test_a_crash_is_recovered_and_shown(process: ServerProcess) -> None:
    """Scenario: kill -9 with bundles in the log only. Guarantee: after the start they are
    there, and status tells how many were replayed."""
    with flight.FlightClient(process.url) as client:
        put_slot(client, "t", [logs(n) for n in range(10)])
    process.kill()
    process.start()
    with flight.FlightClient(process.url) as client:
        eventually(lambda: act(client, "health")["status"] == "ok")
        assert len(get(client, info(client, stream="t").endpoints[0].ticket)) == 10
        status = act(client, "status")
        recovery = status["server"]["recovery"]
        assert (recovery["streams"], recovery["streams_done"]) == (1, 1)
        assert recovery["entries_read"] >= 10
        assert status["streams"]["t"]["recovery"]["bundles_replayed"] == 10


def test_bad_settings_end_with_words_and_status_two(tmp_path: Path) -> None:
    """Scenario: a typo in a setting. Guarantee: one line that names it, no traceback."""
    process = ServerProcess(tmp_path / "data", {"server.prot": "1"})
    with pytest.raises(AssertionError) as caught:
        process.start()
    assert "QUIVER_SERVER__PROT is not a setting" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    process.kill()


def test_two_hundred_connections(server: Server) -> None:
    """Scenario: 200 clients, each with its own connection, all at work at once. Guarantee:
    every one is served."""
    clients = [connect(server) for _ in range(200)]
    failures: list[BaseException] = []

    def work(part: list[flight.FlightClient]) -> None:
        try:
            for client in part:
                assert put_slot(client, "t", [logs(1)])[0]["status"] == "ok"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(clients[n::20],)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with connect(server) as client:
        assert act(client, "status", stream="t")["streams"]["t"]["bundles"] == 200
    for client in clients:
        client.close()


def test_sigusr1_prints_all_stacks_and_serving_goes_on(
    process: ServerProcess, tmp_path: Path
) -> None:
    """Scenario: an operator asks a running server where its threads are. Guarantee: the stacks of
    all of them are on standard error, and the server serves on."""
    os.kill(process.pid, signal.SIGUSR1)
    log = tmp_path / "server.log"
    eventually(lambda: "Current thread" in log.read_text())
    said = log.read_text()
    assert "in _run_ticks" in said
    assert "in serve_until_told" in said
    assert fetch(process.http_port, "/healthz") == (200, "ok\n")
