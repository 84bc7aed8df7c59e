"""Every directory that a release left is opened with exactly what was in it.

The directories and their manifests are under ``<version>/directories``; how they were made is
beside them.  A manifest holds what the release itself read from a copy of the directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from typer.testing import CliRunner

from flight_service.protocol.wrapper import unwrap, unwrap_batch
from flight_service.server import Server, Settings
from quiver import Store
from quiver.cli import app
from quiver.errors import KeyConflict, QuiverError
from tests.compat import golden
from tests.compat.reading import look, open_at, refs, repeat, unpack
from tests.support.batches import same

DIRECTORIES: Final = golden.names("directories")
FINAL: Final = ("acked", "dropped")
SOON: Final = {"idempotency__window_age": "36500d", "transactions__stage_ttl": "36500d"}
TOLD: Final[dict[str, Any]] = {
    "sequence": None,
    "ingestion_ts_ns": None,
    "key": None,
    "attributes": {},
    "event_time": None,
    "rows": 0,
    "nbytes": 0,
}
"""What is said of a bundle over the wire, and what it means that nothing is."""
NEW: Final = pa.record_batch({"n": pa.array([-1, -2], pa.int64())})


def found_as_left(store: Store, manifest: Mapping[str, Any]) -> None:
    """A store that was just opened has what its manifest says, no more and no less."""
    found = look(store)
    golden.same_bundles(found["bundles"], manifest["bundles"])
    for part in ("known_subscribers", "subscribers", "losses", "stages"):
        assert json.loads(json.dumps(found[part])) == manifest[part], part
    # A later version may count more; what was counted stays as it was.
    assert found["loss_totals"].items() >= manifest["loss_totals"].items()


def kept_promises(store: Store, manifest: Mapping[str, Any]) -> None:
    """Repeats of keys and commits are answered with what they were answered at first."""
    before = refs(store)
    for one in manifest["repeats"]:
        receipt = repeat(store, one)
        assert receipt.duplicate, one["key"]
        assert [list(receipt.ref), receipt.sequence] == [one["ref"], one["sequence"]]
        with pytest.raises(KeyConflict):
            store.put({"Logs": NEW}, key=one["key"])
    for one in manifest["commits"]:
        assert store.committed(one["app"]) == one["last"]
        answer = store.commit(one["app"], one["version"], one["attempts"])
        assert answer.repeated
        first = None if answer.first_ref is None else list(answer.first_ref)
        told = [first, answer.segments, answer.bundles, answer.rows]
        assert told == [one["first_ref"], one["segments"], one["bundles"], one["rows"]]
    assert refs(store) == before, "a repeat was kept"


def commit_what_was_staged(store: Store, manifest: Mapping[str, Any]) -> None:
    """Attempts that were finished can be committed: all their bundles appear, as sent."""
    by_transaction: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for one in manifest["staged"]:
        by_transaction.setdefault((one["app"], one["version"]), []).append(one)
    for (name, version), attempts in by_transaction.items():
        before = set(refs(store))
        sent = [batch for one in attempts for batch in one["batches"]]
        answer = store.commit(name, version, [one["attempt"] for one in attempts])
        assert (answer.bundles, answer.repeated) == (len(sent), False)
        fresh = [ref for ref in refs(store) if ref not in before]
        rows = [store.read(ref)["Logs"].to_pylist() for ref in fresh]
        assert sorted(rows, key=repr) == sorted((unpack(b).to_pylist() for b in sent), key=repr)


def unfinished(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Bundles that no store may delete: some subscriber, or any future one, needs them."""
    everyone = manifest["subscribers"].values()

    def done(ref: list[int], by: Mapping[str, Any]) -> bool:
        return any(ref in by.get(outcome, ()) for outcome in FINAL)

    return [
        one
        for one in manifest["bundles"]
        if not everyone or not all(done(one["ref"], by) for by in everyone)
    ]


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_has_what_its_release_left(name: str, tmp_path: Path) -> None:
    """Scenario: a copy is checked by ``quiver verify``, opened, put to, closed and opened
    again. Guarantee: ``verify`` exits as it did; every bundle, subscriber, loss and stage is
    what the release read; repeated keys and commits are answered as at first; finished stages
    can be committed; a new bundle comes behind all others; at the second open nothing that
    anybody needs is missing or changed."""
    manifest = golden.manifest("directories", name)
    path = golden.unpacked("directories", name, tmp_path)
    assert CliRunner().invoke(app, ["verify", str(path)]).exit_code == manifest["verify"]
    if "refused" in manifest:
        with pytest.raises(QuiverError) as refused:
            open_at(path, manifest["settings"], manifest["now_ns"])
        assert refused.value.code == manifest["refused"]
        return
    with open_at(path, manifest["settings"], manifest["now_ns"]) as store:
        found_as_left(store, manifest)
        kept_promises(store, manifest)
        receipt = store.put({"Logs": NEW}).wait()
        assert list(receipt.ref) >= manifest["end"], "nothing may appear before the end"
        assert receipt.sequence >= manifest["next_sequence"]
        commit_what_was_staged(store, manifest)
    with open_at(path, manifest["settings"], manifest["now_ns"]) as store:
        found = {tuple(one["ref"]): one for one in look(store)["bundles"]}
        for one in unfinished(manifest):
            golden.same_bundle(found[tuple(one["ref"])], one)
        kept_promises(store, manifest)
        assert list(found)[-1] >= receipt.ref
        same(store.read(receipt.ref)["Logs"], NEW)
        keyed = store.put({"Logs": NEW}, key="written by a later version").wait()
        again = store.put({"Logs": NEW}, key="written by a later version").wait()
        assert (again.duplicate, again.ref) == (True, keyed.ref)
        assert len(store.losses) == len(manifest["losses"])
    assert CliRunner().invoke(app, ["verify", str(path)]).exit_code == 0


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """A server with every directory that can be opened as a stream."""
    streams = tmp_path / "root" / "streams"
    stored = {}
    for number, name in enumerate(DIRECTORIES):
        manifest = golden.manifest("directories", name)
        if "refused" in manifest:
            continue
        stream = f"s{number}"
        golden.unpacked("directories", name, streams / stream)
        record = {"v": 1, "settings": manifest["settings"]}
        (streams / stream / "service.json").write_text(json.dumps(record))
        stored[stream] = manifest
    settings = Settings.load(
        env={}, server__root=str(tmp_path / "root"), server__port=0, http__port=0, **SOON
    )
    server = Server(settings)
    server.start()
    try:
        yield server, stored
    finally:
        server.stop()


def test_a_server_serves_them(served: Any) -> None:
    """Scenario: a server whose streams are the directories of a release. Guarantee: every
    bundle comes over the wire with its ref, its metadata and equal batches."""
    server, stored = served
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        for stream, manifest in stored.items():
            if manifest["settings"].get("deliver") == "sealed":
                act(client, "flush", stream=stream)
            wanted = {tuple(one["ref"]): one for one in manifest["bundles"] if "gone" not in one}
            seen = dict(everything(client, stream))
            assert set(seen) >= {tuple(one["ref"]) for one in unfinished(manifest)} & set(wanted)
            for ref, (about, slots) in seen.items():
                told = {name: about.get(name, default) for name, default in TOLD.items()}
                assert told == {name: wanted[ref][name] for name in TOLD}
                assert list(slots) == list(wanted[ref]["slots"])
                for name, batch in slots.items():
                    same(batch, unpack(wanted[ref]["slots"][name]["data"]))


def act(client: flight.FlightClient, name: str, **fields: Any) -> dict[str, Any]:
    """An action, with bare pyarrow."""
    body = json.dumps({"v": 1, **fields}).encode()
    (result,) = client.do_action(flight.Action(name, body))
    answer: dict[str, Any] = json.loads(result.body.to_pybytes())
    return answer


def everything(client: flight.FlightClient, stream: str) -> Any:
    """Every bundle of a stream: its ref, what is said about it, its batches."""
    command = json.dumps({"v": 1, "stream": stream, "max_bundles": 4096})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    for endpoint in info.endpoints:
        for chunk in client.do_get(endpoint.ticket):
            about = json.loads(chunk.app_metadata.to_pybytes())
            rows = unwrap(chunk.data)
            batches = map(unwrap_batch, rows)
            yield (
                tuple(about["ref"]),
                (about, dict(zip(about.get("slots", []), batches, strict=True))),
            )
