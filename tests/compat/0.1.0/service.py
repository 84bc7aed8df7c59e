"""How ``roots/`` and ``wire/`` were made: server roots, and a conversation, by 0.1.0.

Run by the code of 0.1.0 (see ``README.md``).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # behind the code of 0.1.0
sys.path.append(str(HERE.parents[2]))  # for tests.compat; quiver is found before it

import quiver  # noqa: E402

assert "/build/compat/" in quiver.__file__, quiver.__file__

from directories import archive, numbered, reading  # noqa: E402
from flight_service.client import connect  # noqa: E402
from flight_service.protocol.actions import ACTIONS  # noqa: E402
from flight_service.protocol.wrapper import wrap  # noqa: E402
from flight_service.server import Server, Settings  # noqa: E402
from quiver import Config, SystemClock  # noqa: E402
from tests.compat.conversation import Player  # noqa: E402

SETTINGS = {
    "server__port": 0,
    "http__port": 0,
    "reserve": 0,
    "segment__max_open_duration": "1h",
    "idempotency__window_age": "36500d",
    "transactions__stage_ttl": "36500d",
    "transactions__remember": "36500d",
}
SMALL = {"segment": {"target_size": "1MiB"}, "retention": {"keep_after_finish": "36500d"}}


def serve(root):
    server = Server(Settings.load(env={}, server__root=str(root), **SETTINGS))
    server.start()
    return server


def act(client, name, **fields):
    body = json.dumps({"v": 1, **fields}).encode()
    (result,) = client.do_action(flight.Action(name, body))
    return json.loads(result.body.to_pybytes())


def until(check):
    pause = threading.Event()
    for _ in range(400):
        if check():
            return
        pause.wait(0.05)
    raise AssertionError("waited for 20 s")


def deleted(client):
    """Whether the stream could be deleted: not while the last put's call is open."""
    try:
        act(client, "delete_stream", stream="deleted", confirm="deleted", force=True)
    except flight.FlightUnavailableError:
        return False
    return True


def fill(root, notes):
    """What both roots hold."""
    server = serve(root)
    bare = flight.connect(f"grpc://127.0.0.1:{server.port}")
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        logs = client.stream("logs")
        for n in range(6):
            logs.put({"Logs": numbered(n), **({"Attrs": numbered(n + 50, 2)} if n % 2 else {})},
                     key=f"logs/{n}", attributes={"n": str(n)}, event_time=(n, n + 10))
        logs.flush()
        for n in range(6, 10):
            logs.put({"Logs": numbered(n)}, key=f"logs/{n}")
        act(bare, "register", stream="logs", subscriber="exporter", max_in_flight=7,
            max_in_flight_bytes=10**6, lease_ms=45_000, max_deliveries=9, poison="block",
            backoff_ms=10, backoff_max_ms=40, slots=["Logs", "Spans"])
        act(bare, "ack", stream="logs", subscriber="exporter", refs=[[0, 0, 2]], durable=True)
        act(bare, "reject", stream="logs", subscriber="exporter", refs=[[0, 3]], durable=True)
        # Deliveries that failed, once and twice.
        act(bare, "register", stream="logs", subscriber="failing")
        for _ in range(2):
            took = act(bare, "claim", stream="logs", subscriber="failing", max_bundles=1)
            act(bare, "defer", stream="logs", subscriber="failing", delay_ms=0,
                refs=[one["ref"] for one in took["bundles"]], reason="busy, again")
        took = act(bare, "claim", stream="logs", subscriber="failing", max_bundles=3)
        act(bare, "defer", stream="logs", subscriber="failing", delay_ms=0, reason="once",
            refs=[one["ref"] for one in took["bundles"][1:]])
        # A lease that is held when the server dies.
        held = act(bare, "claim", stream="logs", subscriber="holder", max_bundles=2,
                   lease_ms=3_600_000, consumer="c-1")
        notes["lease"] = held["lease"]
        notes["held"] = [one["ref"] for one in held["bundles"]]
        # Poison: to the usual stream, to a named one, dropped, blocking.
        poison = client.stream("poison")
        for n in range(4):
            poison.put({"Logs": numbered(100 + n)}, key=f"p{n}", attributes={"kept": "yes"})
        for name, more in (("dies", {}), ("named", {"dead_letter_stream": "graves"}),
                           ("drops", {"poison": "drop"}), ("blocks", {"poison": "block"})):
            act(bare, "register", stream="poison", subscriber=name, max_deliveries=1,
                backoff_ms=0, backoff_max_ms=0, **more)
            took = act(bare, "claim", stream="poison", subscriber=name, max_bundles=1)
            act(bare, "defer", stream="poison", subscriber=name, delay_ms=0, reason=f"{name}!",
                refs=[took["bundles"][0]["ref"]])
            if name != "blocks":  # the next claim finds that it is poison
                took = act(bare, "claim", stream="poison", subscriber=name, max_bundles=1)
                act(bare, "ack", stream="poison", subscriber=name, durable=True,
                    refs=[one["ref"] for one in took["bundles"]])
        until(lambda: {"poison-dead", "graves"} <= {one["name"] for one in
              act(bare, "list_streams")["streams"]})
        until(lambda: all(act(bare, "plan", stream=one)["parts"]
                          for one in ("poison-dead", "graves")))
        # A stream of its own settings, finished and empty: only service.json knows its schema.
        act(bare, "create_stream", stream="finished")
        finished = client.stream("finished")
        finished.put({"Spans": numbered(200), "Events": numbered(201, 1)})
        finished.flush()
        act(bare, "register", stream="finished", subscriber="s")
        until(lambda: "Events" in (root / "streams/finished/service.json").read_text())
        act(bare, "ack", stream="finished", subscriber="s", before=[1, 0], durable=True)
        act(bare, "maintain", stream="finished")
        act(bare, "create_stream", stream="kept", settings=SMALL)
        kept = client.stream("kept")
        for n in range(3):
            kept.put({"Logs": numbered(300 + n)})
            kept.flush()
        act(bare, "register", stream="kept", subscriber="s")
        act(bare, "ack", stream="kept", subscriber="s", before=[3, 0], durable=True)
        # Staged writes: one committed, attempts of another waiting.
        for version, attempts in ((0, ["a", "b"]), (1, ["p0", "p1", "p1-again"])):
            for n, attempt in enumerate(attempts):
                where = {"v": 1, "stream": "staged", "mode": "slot", "slot": "Logs",
                         "stage": {"app": "job", "version": version, "attempt": attempt}}
                batch = numbered(400 + 10 * version + n)
                writer, reader = bare.do_put(
                    flight.FlightDescriptor.for_command(json.dumps(where)), batch.schema)
                with writer:
                    writer.write_batch(batch)
                    writer.done_writing()
                    while reader.read() is not None:
                        pass
                act(bare, "finish_stage", stream="staged", app="job", version=version,
                    attempt=attempt, bundles=1)
            if version == 0:
                act(bare, "commit", stream="staged", app="job", version=0, attempts=attempts)
        # A deleted stream whose directory is still in the trash.
        with connect(f"grpc://127.0.0.1:{server.port}") as short:
            short.stream("deleted").put({"Logs": numbered(500)})
        rmtree, shutil.rmtree = shutil.rmtree, lambda *a, **k: None
        until(lambda: deleted(bare))
        shutil.rmtree = rmtree
        # A stream without a service.json.
        client.stream("bare").put({"Logs": numbered(600)}, key="bare/0")

    def saved():
        document = json.loads((root / "streams/logs/service.json").read_text())
        failing = document["subscribers"].get("failing", {})
        return len(failing.get("failures", [])) == 3 and "holder" in document["subscribers"]

    until(saved)
    until(lambda: "blocks" in (root / "streams/poison/service.json").read_text())
    until(lambda: json.loads((root / "streams/poison/service.json").read_text())
          ["subscribers"]["blocks"]["failures"])
    return server


def live(kind, where):
    """Be the process of a root."""
    notes = {}
    root = where / "root"
    root.mkdir()
    server = fill(root, notes)
    (where / "notes.json").write_text(json.dumps(notes))
    if kind == "killed":
        (root / "streams/bare/service.json").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    server.stop()
    (root / "streams/bare/service.json").unlink()


def describe(root):
    """What each stream holds, read by the library from a copy."""
    found = {}
    for place in sorted((root / "streams").iterdir()):
        record = place / "service.json"
        document = json.loads(record.read_text()) if record.exists() else None
        settings = {"reserve": 0, **((document or {}).get("settings") or {})}
        ages = {"idempotency": {"window_age": "36500d"},
                "transactions": {"stage_ttl": "36500d", "remember": "36500d"}}
        store = quiver.open(place / "store", Config.load(env={}, **ages, **settings),
                            clock=SystemClock())
        found[place.name] = {"service": document, **reading.look(store)}
        store.close()
    return found


def make_root(kind):
    out = HERE / "roots"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        ended = subprocess.run([sys.executable, "-P", __file__, "--live", kind, scratch],
                               check=False)
        wanted = -signal.SIGKILL if kind == "killed" else 0
        assert ended.returncode == wanted, ended.returncode
        root = where / "root"
        assert len(list((root / "trash").iterdir())) == 1
        archive(root, out / f"{kind}.tar.xz")
        copy = where / "copy"
        shutil.copytree(root, copy)
        notes = json.loads((where / "notes.json").read_text())
        manifest = {"version": "0.1.0", "settings": SETTINGS, **notes, "streams": describe(copy)}
        text = json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True)
        (out / f"{kind}.json").write_text(text + "\n")
        print(kind, (out / f"{kind}.tar.xz").stat().st_size, len(text), list(manifest["streams"]))


# --------------------------------------------------------------- conversation


def body(**fields):
    return json.dumps({"v": 1, **fields})


def action(name, capture=None, **fields):
    step = {"call": "action", "type": name, "body": body(**fields)}
    return step | ({"capture": capture} if capture else {})


def info(capture=None, **fields):
    step = {"call": "info", "command": body(**fields)}
    return step | ({"capture": capture} if capture else {})


def get(**fields):
    return {"call": "get", "ticket": body(**fields)}


def put(batches, command=None, path=None, capture=None):
    where = {"path": path} if path else {"command": body(**command)}
    messages = [
        {"data": reading.pack(batch), **({"about": body(**about)} if about is not None else {})}
        for batch, about in batches
    ]
    return {"call": "put", **where, "messages": messages, "varies": ["reason"],
            **({"capture": capture} if capture else {})}


def conversation(notes):
    one, two = numbered(1000), numbered(1001)
    both = {"Logs": one, "Attrs": two}
    stage = {"app": "job", "version": 2, "attempt": "t0"}
    read = {"stream": "logs"}
    exporter = {"stream": "logs", "subscriber": "exporter"}
    reader = {"stream": "logs", "subscriber": "reader"}
    by_number = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.uint16()), pa.array([bytes(range(32))], pa.binary()),
         wrap({"Logs": one}).column("ipc")], names=["slot", "schema_fp", "ipc"])
    return [
        {"call": "list", "what": "actions", "compare": "subset"},
        {"call": "list", "what": "flights"},
        action("health"),
        {"call": "action", "type": "health", "body": ""},
        action("list_streams"),
        action("status", stream="logs") | {"compare": "shape"},
        action("lag", stream="logs"),
        action("lag", stream="logs", subscriber="failing"),
        # Tickets: every form, written by hand and as the server gives them out.
        get(**read, refs=[[0, 0]]),
        get(**read, refs=[[0, 5], [0, 0, 3]]),
        get(**read, refs=[[0, 1], [0, 0]], slots=["Attrs"]),
        get(**read, refs=[[0, 1]], projection={"Logs": ["n"], "Attrs": ["text"]}),
        get(**read, refs=[[0, 0, 6]], mode="slot", slot="Logs"),
        get(**read, refs=[[0, 1]], mode="slot", slot="Attrs", columns=["text"]),
        get(stream="staged", refs=[[0, 0, 2]], mode="bundle"),
        get(stream="poison-dead", refs=[[0, 0]]),
        get(**read, refs=[[0, 99]]),
        get(**read, refs=[[0, 0]], nonsense=1),
        get(stream="nowhere", refs=[[0, 0]]),
        get(**read, refs=[[0, 0]], subscriber="holder", lease=notes["lease"]),
        # FlightInfo: commands and paths.
        {"call": "info", "path": ["logs"]},
        {"call": "info", "path": ["logs", "Attrs"]},
        {"call": "schema", "path": ["logs", "Logs"]},
        info(**read),
        info(**read, max_bundles=2, describe=True),
        info(**read, start=[0, 2], end=[0, 5]),
        info(**read, refs=[[0, 1], [0, 3]], mode="slot", slot="Attrs"),
        info(**read, mode="slot", slot="Attrs", columns=["n"]),
        info(**read, since_ns=1, until_ns=2),
        info(**read, slots=["Logs"], projection={"Logs": ["n"]}, max_bytes=1),
        info(stream="nowhere"),
        info(**read, mode="slot"),
        # Subscribers of before, with their policies, failures and progress.
        action("register", stream="logs", subscriber="exporter"),
        action("register", stream="logs", subscriber="failing"),
        action("claim", stream="logs", subscriber="failing", max_bundles=4),
        action("claim", stream="poison", subscriber="drops", max_bundles=1),
        action("claim", stream="poison", subscriber="blocks", max_bundles=1),
        action("claim", stream="poison", subscriber="dies", max_bundles=1),
        action("ack", **exporter, refs=[[0, 0]], durable=True),
        action("ack", stream="logs", subscriber="holder", refs=notes["held"],
               lease=notes["lease"]),
        action("renew", stream="logs", subscriber="holder", lease=notes["lease"]),
        action("defer", stream="logs", subscriber="holder", refs=notes["held"][:1],
               lease=notes["lease"]),
        # A new subscriber: claims by action and by info, every outcome.
        action("register", **reader, start="earliest", max_in_flight=5, lease_ms=60_000,
               max_deliveries=3, poison="drop", dead_letter_stream="graves", backoff_ms=0,
               backoff_max_ms=0, slots=["Logs"]),
        action("claim", {"lease": ["lease"]}, **reader, max_bundles=2, lease_ms=60_000,
               consumer="c", wait_ms=100, max_bytes=10**6, order="oldest"),
        get(**reader, refs=[[0, 0, 2]], lease="$lease"),
        action("renew", **reader, lease="$lease", refs=[[0, 0]], lease_ms=60_000),
        action("ack", **reader, refs=[[0, 0]], lease="$lease", durable=True),
        action("ack", **reader, refs=[[0, 1]], lease="$lease"),
        action("next", {"lease2": ["lease"]}, **reader, max_bundles=2),
        action("reject", **reader, refs=[[0, 1]], lease="$lease2", reason="bad", durable=True),
        action("defer", **reader, refs=[[0, 2]], delay_ms=0, reason="later", lease="$lease2"),
        info({"lease3": ["about", "lease"]}, **reader, max_bundles=1, lease_ms=60_000,
             wait_ms=500, consumer="c"),
        action("ack", **reader, before=[0, 4], durable=True),
        action("seek", **reader, to=[0, 1]),
        action("seek", **reader, to="latest"),
        action("seek", **reader, to="earliest"),
        action("seek", **reader, to=1),
        action("claim", stream="logs", subscriber="newest", order="newest", max_bundles=1),
        action("activate", stream="logs"),
        action("unregister", **reader),
        action("drop_orphan", stream="logs", subscriber="exporter"),
        # Plans and schemas.
        action("plan", **read),
        action("plan", **read, max_bundles=2, max_parts=2),
        action("plan", **read, start=[0, 1], end=[0, 3], max_bytes=1),
        action("plan", **read, since_ns=1, until_ns=2, subscriber="exporter"),
        action("schemas", stream="logs"),
        action("schemas", stream="finished", slot="Events"),
        # Puts: every mode, envelope and outcome.
        put([(one, None)], path=["fresh", "Logs"]),
        put([(one, {"key": "k1", "attributes": {"a": "b"}, "event_time": [1, 2]}),
             (one, {"key": "k1"}), (two, {"key": "k1"}), (one, {"resend": 9})],
            {"stream": "fresh", "mode": "slot", "slot": "Logs"}),
        put([(wrap(both), {"key": "k2", "hash": "ab" * 32}), (wrap(both), {"key": "k2",
             "hash": "ab" * 32}), (wrap(both), {"key": "k2", "hash": "cd" * 32}),
             (wrap(both), None)], {"stream": "fresh"}, capture={"last": [3, "ref"],
             "sequence": [3, "sequence"]}),
        put([(pa.concat_batches([wrap(both), wrap({"Logs": one})]),
              {"bundles": [{"slots": 2, "key": "k3"}, {"slots": 1, "attributes": {"x": "y"}}]}),
             (wrap(both), {"bundles": [{"slots": 7}]})], {"stream": "fresh", "mode": "bundle"}),
        put([(by_number, None)], {"stream": "logs"}),
        put([(one, None)], {"stream": "fresh", "mode": "slot", "slot": "Logs",
                            "durability": "accepted"}) | {"varies": ["durability"]},
        put([(one, {"key": "logs/0"}), (numbered(7), {"key": "logs/7"})],
            {"stream": "logs", "mode": "slot", "slot": "Logs"}),
        put([(one, {"unknown": 1})], {"stream": "fresh", "mode": "slot", "slot": "Logs"}),
        action("wait_durable", stream="fresh", sequence="$sequence", timeout_ms=5000),
        get(stream="fresh", refs=["$last"]) | {"varies": ["ingestion_ts_ns"]},
        # Staged writes of before and of now.
        action("begin", stream="staged", app="job", version=0),
        action("begin", stream="staged", app="job", version=1),
        action("commit", stream="staged", app="job", version=0, attempts=["a", "b"]),
        action("finish_stage", stream="staged", app="job", version=1, attempt="p0", bundles=1),
        action("commit", stream="staged", app="job", version=1, attempts=["p0", "nope"]),
        action("commit", stream="staged", app="job", version=1, attempts=["p0", "p1-again"]),
        action("commit", stream="staged", app="job", version=1, attempts=["p0", "p1-again"]),
        put([(one, None)], {"stream": "staged", "mode": "slot", "slot": "Logs", "stage": stage}),
        action("finish_stage", stream="staged", **stage, bundles=1),
        action("abort", stream="staged", app="job", version=2, attempts=["t0"]),
        action("abort", stream="staged", app="job", version=2),
        # A live subscription.
        {"call": "exchange",
         "command": body(stream="kept", subscriber="live", credit=2, credit_bytes=10**6,
                         lease_ms=60_000, consumer="c", order="oldest", slots=["Logs"],
                         projection={"Logs": ["n"]}),
         "script": ["hear", "hear", "hear",
                    body(ack=["$heard1"], durable=True, id=1), "hear",
                    body(credit=1, credit_bytes=10**6), "hear",
                    body(reject=["$heard2"], reason="no", id=2, durable=True), "hear",
                    body(defer=["$heard4"], delay_ms=60_000, reason="later", id=3), "hear",
                    body(ping=True, id=4), "hear"]},
        {"call": "exchange",
         "command": body(stream="kept", subscriber="together", together=64),
         "script": ["hear", "hear", body(ack=[[0, 0], [1, 0], [2, 0]], durable=True, id=9),
                    "hear", body(pause=True, id=10), "hear", body(ping=True, id=11), "hear"]},
        # Streams and operation.
        action("create_stream", stream="made", settings=SMALL),
        action("create_stream", stream="made"),
        action("create_stream", stream="made", if_not_exists=True),
        action("flush", stream="fresh") | {"compare": "shape"},
        action("maintain", stream="fresh") | {"compare": "shape"},
        action("drain", stream="made", timeout_ms=100),
        action("delete_stream", stream="made", confirm="nade"),
        action("delete_stream", stream="made", confirm="made"),
        action("delete_stream", stream="logs", confirm="logs"),
        action("status", stream="made"),
        action("no_such_action", stream="logs"),
        action("ack", strem="typo"),
        {"call": "action", "type": "lag", "body": '{"stream": "logs"}'},
        {"call": "action", "type": "lag", "body": '{"v": 2, "stream": "logs"}'},
    ]


def make_conversation():
    out = HERE / "wire"
    out.mkdir(exist_ok=True)
    notes = json.loads((HERE / "roots" / "killed.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(HERE / "roots" / "killed.tar.xz") as tar:
            tar.extractall(scratch, filter="fully_trusted")
        server = serve(Path(scratch) / "root")
        steps = conversation(notes)
        asked = {step["type"] for step in steps if step["call"] == "action"}
        assert set(ACTIONS) <= asked, set(ACTIONS) - asked
        player = Player(flight.connect(f"grpc://127.0.0.1:{server.port}"))
        until(lambda: player.play(action("health"))["status"] == "ok")
        for step in steps:
            step["answer"] = player.play(step)
            print(step["call"], step.get("type", ""), json.dumps(step["answer"])[:230])
        server.stop()
    text = json.dumps({"version": "0.1.0", "root": "killed", "settings": SETTINGS, "steps": steps},
                      indent=1, ensure_ascii=False)
    (out / "conversation.json").write_text(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--live"]:
        live(sys.argv[2], Path(sys.argv[3]))
    else:
        make_root("killed")
        make_root("stopped")
        make_conversation()
