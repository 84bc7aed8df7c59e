"""Kinds of trouble.  An act does something to the stage and leaves a running server behind.

What is done is written down as a ``trouble`` note.  Some of it is an excuse for the judge:

=================  ================================================================
``damage``         bytes are not what was written; losses may be on record
``caps`` ``age``   a policy may drop bundles, on record
``progress_lost``  a progress file was damaged: that subscriber's acks may be forgotten
``memory_lost``    the checkpoint was damaged: keys and ledger so far may be forgotten
``keys_lost``      a file of keys was damaged: keys so far may be forgotten
=================  ================================================================
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.chaos import damage
from tests.chaos.clients.job import NEW_NAMES, Item
from tests.chaos.disks import SmallDisk
from tests.chaos.settings import change_settings
from tests.chaos.stage import DAMAGED_EXIT, EMBEDDED, START_SECONDS, STREAM, Stage
from tests.chaos.wire import FAILURES, act, connect, put

Act = Callable[[Stage, Random], None]
DAY: Final = 86_400.0
CLOCK_EVENT: Final = "quiver.clock.jumped"
VERIFY_DAMAGED: Final = 2
UNTAKEN: Final = 12
"""Refused puts after which a disk counts as full."""
IDLE_CONNECTIONS: Final = 160
MORE_MEMORY: Final = (0, 256 << 10, 1 << 20, 4 << 20)
KEPT_BACK: Final = 40
"""Descriptors that the server keeps for stores: connections don't get them."""
NEIGHBOUR: Final = "neighbour"
SUBSCRIBERS: Final = ("bare-subscriber", "product-subscriber", EMBEDDED)
KEYS: Final = 2500
REFUSED: Final = "puts refused"
STARVED: Final = "no descriptor left"
JUMPED: Final = "jump noticed"
SQUEEZED: Final = "no memory left"
"""Trouble that took effect, as seen from outside."""


class RoundOver(Exception):
    """The round can't go on; why is written down."""


# Starting


def bring_up(stage: Stage) -> None:
    """Start the server; what damage made unusable is repaired, as an operator would."""
    if not stage.start():
        said = (stage.where / "server.log").read_text()[-300:]
        stage.violation("refused_to_start", f"the server ended at its start: {said}")
        raise RoundOver
    if not stage.damaged:
        return
    state = stage.settled()
    if state is None:
        stage.violation("hang", "the server does not say how its stream is")
        raise RoundOver
    if state["state"] != "damaged":
        return
    stage.trouble("refused", problem=state.get("problem"))
    stage.server.kill()
    stage.repair(stage.store, STREAM)
    if not stage.start():
        stage.violation("refused_to_start", "the server ended at its start after a repair")
        raise RoundOver
    state = stage.settled()
    if state is None or state["state"] == "damaged":
        problem = None if state is None else state.get("problem")
        stage.violation("refused_to_start", f"refused after a repair: {problem}")
        raise RoundOver


def bring_up_embedded(stage: Stage, tries: int = 2) -> None:
    """Start the embedded store's process; the same."""
    stage.start_embedded()
    process = stage.embedded
    if process is None:
        return
    life = stage.embedded_job.life - 1

    def opened() -> bool:
        stage.durable_puts()
        return not process.running or any(
            note.kind == "opened" and note["life"] == life for note in stage.reader.notes
        )

    stage.await_(opened, START_SECONDS)
    if process.code != DAMAGED_EXIT:
        return
    stage.embedded = None
    if not stage.damaged:
        stage.violation("refused_to_start", f"the embedded store: {process.tail(300)}")
        raise RoundOver
    if not tries:
        stage.violation("refused_to_start", "the embedded store is refused after repairs")
        raise RoundOver
    stage.repair(stage.embedded_path, EMBEDDED)
    bring_up_embedded(stage, tries - 1)


# Processes


def kill(stage: Stage, chance: Random) -> None:
    """kill -9, and a start; now and then killed again while it starts.

    Slot names come in just before it: a name is an entry of the log like any other.
    """
    stage.flags.raise_(NEW_NAMES)
    stage.await_puts(chance.randint(1, 16), 2.0)
    stage.kill()
    if stage.uses_embedded and chance.random() < 0.7:
        stage.kill_embedded()
    stage.flags.lower(NEW_NAMES)
    if chance.random() < 0.25 and stage.start():
        stage.pass_time(chance.uniform(0.0, 0.15))
        stage.kill()
    bring_up(stage)
    if stage.uses_embedded and stage.embedded is None:
        bring_up_embedded(stage)


def stop_server(stage: Stage, chance: Random) -> None:
    """SIGSTOP: longer than leases hold, then on as if nothing had been."""
    process = stage.server.process
    if process is not None:
        stage.trouble("stopped")
        process.signal(signal.SIGSTOP)
        stage.pass_time(chance.uniform(0.2, 2.5))
        process.signal(signal.SIGCONT)


def stop_client(stage: Stage, chance: Random) -> None:
    """A client stops in the middle of anything, longer than its lease."""
    if stage.clients:
        process = chance.choice(stage.clients)
        stage.trouble("stopped client", client=process.name)
        process.signal(signal.SIGSTOP)
        stage.pass_time(chance.uniform(0.5, 2.5))
        process.signal(signal.SIGCONT)


def hold_subscriber(stage: Stage, chance: Random) -> None:
    """A subscriber stands still for some puts: segments pile up, unread."""
    held = _hold(stage, chance.sample(SUBSCRIBERS, chance.randint(1, 3)))
    stage.await_puts(chance.randint(30, 120))
    _release(stage, held)


def outlast_age(stage: Stage, chance: Random) -> None:
    """A subscriber stands still for longer than segments are kept."""
    held = _hold(stage, chance.sample(SUBSCRIBERS, chance.randint(2, 3)))
    stage.await_puts(chance.randint(30, 60))
    stage.pass_time(chance.uniform(2.5, 4.0))
    _release(stage, held)


def _hold(stage: Stage, names: list[str]) -> list[str]:
    for name in names:
        stage.flags.raise_(f"hold-{name}")
    return names


def _release(stage: Stage, names: list[str], slowly: bool = False) -> None:
    for name in names:
        if slowly:
            stage.flags.raise_(f"slow-{name}")
        else:
            stage.flags.lower(f"slow-{name}")
        stage.flags.lower(f"hold-{name}")


# Network


def reset_network(stage: Stage, chance: Random) -> None:
    """Connections end with RST, several times."""
    for _ in range(chance.randint(1, 4)):
        if stage.network.reset():
            stage.trouble("reset")
        stage.await_puts(chance.randint(1, 10), 2.0)


def delay_network(stage: Stage, chance: Random) -> None:
    """Every piece arrives late."""
    stage.trouble("delay")
    stage.network.delay = chance.uniform(0.005, 0.1)
    stage.await_puts(chance.randint(3, 12), 4.0)
    stage.network.delay = 0.0


def silence_network(stage: Stage, chance: Random) -> None:
    """Half-open: what clients say arrives, answers don't; or nothing does. Then it breaks."""
    half = chance.random() < 0.6
    stage.trouble("half-open" if half else "silent")
    if half:
        stage.network.mute()
    else:
        stage.network.freeze()
    stage.pass_time(chance.uniform(0.3, 2.5))
    if chance.random() < 0.5:
        stage.network.calm()
    else:
        stage.network.thaw()


# Disk


def fill_disk(stage: Stage, chance: Random) -> None:
    """Another takes all the space, for a while; perhaps over a kill and a start."""
    disk = _small_disk(stage)
    if disk is None:
        return
    stage.trouble("full")
    disk.fill(chance.choice((0, 0, 4096, 65_536)))
    _refuses(stage, chance.uniform(0.3, 1.0))
    if chance.random() < 0.4:
        stage.kill()
        bring_up(stage)
        stage.pass_time(chance.uniform(0.2, 0.6))
    disk.free()


def _small_disk(stage: Stage) -> SmallDisk | None:
    """The round's own file system, if it has one and one could be mounted."""
    if stage.disk is not None and not stage.disk.real:
        stage.cannot("no small file system could be mounted here")
        return None
    return stage.disk


def fill_by_puts(stage: Stage, chance: Random) -> None:
    """Producers fill the disk; subscribers then finish everything, and that makes room."""
    disk = _small_disk(stage)
    if disk is None:
        return
    stage.trouble("full by puts")
    held = _hold(stage, list(SUBSCRIBERS))
    disk.fill(chance.choice((1 << 20, 2 << 20)))
    full = _refuses(stage)
    _release(stage, held)
    _takes_again(stage, disk, full)


def fill_beside_keys(stage: Stage, chance: Random) -> None:
    """Many keys are remembered, all is acked, and another takes nearly all the space."""
    disk = _small_disk(stage)
    if disk is None:
        return
    stage.trouble("full beside keys")
    stage.await_puts(chance.randint(KEYS // 2, KEYS), 25.0)
    disk.fill(chance.choice((64 << 10, 256 << 10)))
    _takes_again(stage, disk, _refuses(stage))


def _refuses(stage: Stage, seconds: float = 12.0) -> bool:
    """Wait until puts are refused for want of space."""
    before = len(stage.reader.notes)

    def refused() -> bool:
        stage.durable_puts()
        fresh = stage.reader.notes[before:]
        answers = [note["status"] for note in fresh if note.kind == "answer"]
        return answers.count("retry") > UNTAKEN

    full = stage.await_(refused, seconds)
    if full:
        stage.trouble(REFUSED)
    return full


def _takes_again(stage: Stage, disk: SmallDisk, was_full: bool) -> None:
    """Everything is acked: what the store gives back is room for puts."""
    if was_full and not stage.await_puts(3, 15.0):
        problems = (stage.stream_state() or {}).get("problems")
        stage.violation("stuck", f"all is acked on a full disk, no put is taken: {problems}")
    disk.free()


# Descriptors


def starve_descriptors(stage: Stage, chance: Random) -> None:
    """Idle connections take every descriptor the server may have, and hover there."""
    stage.trouble("few descriptors")
    for _ in range(IDLE_CONNECTIONS):
        _connect_idly(stage)
    most = 0
    for _ in range(chance.randint(10, 25)):
        most = max(most, stage.server.open_files)
        some = chance.randint(1, 6)
        for one in stage.connections[:some]:
            one.close()
        stage.connections = stage.connections[some:]
        stage.pass_time(chance.uniform(0.0, 0.12))
        for _ in range(some):
            _connect_idly(stage)
    stage.drop_connections()
    if stage.server.descriptors and most >= stage.server.descriptors - KEPT_BACK:
        stage.trouble(STARVED, most=most)


def _connect_idly(stage: Stage) -> None:
    try:
        one = socket.create_connection(("127.0.0.1", stage.server.port), timeout=0.2)
    except OSError:
        return
    stage.connections.append(one)


# Memory


def squeeze_memory(stage: Stage, chance: Random) -> None:
    """The server gets hardly more memory than it has: what it does not get, it does without.

    It may end for want of it, as the kernel might end it: then it is started again.
    """
    before = stage.said("MemoryError") + stage.said("malloc of size")
    if not stage.server.limit_memory(chance.choice(MORE_MEMORY)):
        stage.cannot("no limit of memory can be set for another process here")
        return
    stage.trouble("memory limit")
    held = _hold(stage, chance.sample(SUBSCRIBERS, 2))
    stage.await_puts(chance.randint(60, 200), 4.0)
    _release(stage, held)
    stage.pass_time(chance.uniform(0.0, 1.0))
    if not stage.server.running:
        stage.trouble(SQUEEZED, ended=True)
        stage.kill()
        bring_up(stage)
        return
    stage.server.free_memory()
    if stage.said("MemoryError") + stage.said("malloc of size") > before:
        stage.trouble(SQUEEZED)


# Clock


def jump_clock(stage: Stage, chance: Random) -> None:
    """The wall clock is days off for a moment, and right again."""
    days = chance.choice((2.0, 2.0, 40.0, -1.0))
    stage.trouble("clock", days=days)
    before = stage.said(CLOCK_EVENT)
    stage.clock.set(days * DAY)
    stage.await_puts(chance.randint(5, 30), 4.0)
    if chance.random() < 0.3:
        kill(stage, chance)
        stage.await_puts(5, 4.0)
    stage.clock.set(0.0)
    stage.await_puts(30, 4.0)
    if stage.said(CLOCK_EVENT) > before:
        stage.trouble(JUMPED)


# Settings


def new_settings(stage: Stage, chance: Random) -> None:
    """Killed or stopped, and started with other settings."""
    stage.stop_hard_or_softly(chance)
    stage.kill_embedded()
    change_settings(stage.settings, chance)
    change_settings(stage.embedded_settings, chance)
    stage.trouble("settings", settings=dict(stage.settings))
    stage.trouble("settings", EMBEDDED, settings=dict(stage.embedded_settings))
    bring_up(stage)
    bring_up_embedded(stage)


# Damage


def _inflict(stage: Stage, store: Path, stream: str, how: damage.Damager, chance: Random) -> bool:
    told = how(store, chance)
    if told is None:
        return False
    stage.damaged = True
    also = told.pop("also", None)
    stage.trouble("damage", stream, **told)
    if also is not None:
        stage.trouble(stream=stream, **also)
    return True


def damage_at_rest(stage: Stage, chance: Random) -> None:
    """Files are damaged while nobody has them open; the next start has to deal with it.

    Sometimes an operator repairs them first; sometimes the next kill comes soon.
    """
    held = _hold(stage, chance.sample(SUBSCRIBERS, chance.choice((1, 3, 3))))
    stage.flags.raise_(NEW_NAMES)
    stage.await_puts(chance.randint(30, 150))
    stage.flags.lower(NEW_NAMES)
    stage.stop_hard_or_softly(chance)
    stage.kill_embedded()
    ways, weights = zip(*damage.AT_REST, strict=True)
    for store, stream in ((stage.store, STREAM), (stage.embedded_path, EMBEDDED)):
        if not store.exists() or (stream == EMBEDDED and not stage.uses_embedded):
            continue
        hits = chance.choices(ways, weights, k=chance.randint(1, 3))
        sure = [how for how in hits if _inflict(stage, store, stream, how, chance)]
        if any(how in (damage.flip_values, damage.cut_segment) for how in sure):
            _verify(stage, store)
        if sure and chance.random() < 0.35:
            stage.repair(store, stream)
    bring_up(stage)
    bring_up_embedded(stage)
    if chance.random() < 0.5:
        kill(stage, chance)
    _release(stage, held)


def _verify(stage: Stage, store: Path) -> None:
    code, _ = stage.quiver("verify", str(store))
    if code == 0:
        stage.violation("status_hides_damage", f"quiver verify calls {store.name} sound")
    elif code != VERIFY_DAMAGED:
        stage.violation("client_failed", f"quiver verify ended with {code}")


def damage_while_running(stage: Stage, chance: Random) -> None:
    """Sealed segments rot under the server; one subscriber reads them, another is behind.

    What the first one's read finds is dealt with while the second still needs it; then,
    perhaps, a kill.
    """
    names = list(SUBSCRIBERS)
    chance.shuffle(names)
    held = _hold(stage, names)
    stage.await_puts(chance.randint(60, 200))
    for store, stream in ((stage.store, STREAM), (stage.embedded_path, EMBEDDED)):
        if store.exists() and (stream == STREAM or stage.uses_embedded):
            for _ in range(chance.randint(1, 3)):
                _inflict(stage, store, stream, damage.flip_values, chance)
    _release(stage, held[1:])
    _release(stage, held[:1], slowly=True)
    stage.await_puts(chance.randint(1, 90), 4.0)
    if chance.random() < 0.8:
        kill(stage, chance)
    _release(stage, held)


def damage_service_file(stage: Stage, chance: Random) -> None:
    """The stream's own settings are damaged: a digit changed, or the file gone."""
    before = _told_settings(stage)
    path = stage.store.parent / "service.json"
    if before is None or not path.exists():
        return
    if not stage.server.terminate():
        stage.violation("hang", "the server did not end after SIGTERM")
    data = path.read_text()
    if chance.random() < 0.3:
        path.unlink()
    else:
        at = chance.choice([at for at, char in enumerate(data) if char.isdigit()])
        path.write_text(data[:at] + str((int(data[at]) + 1) % 10) + data[at + 1 :])
    stage.trouble("service file", gone=not path.exists())
    if not stage.start():
        stage.violation("refused_to_start", "one stream's service.json ended the server")
        raise RoundOver
    state = stage.settled()
    after = _told_settings(stage)
    if state is not None and state["state"] == "open" and after != before:
        stage.violation("settings_lost", f"were {before}, are {after}, and the stream is open")
    stage.server.kill()
    path.write_text(data)
    bring_up(stage)


def _told_settings(stage: Stage) -> tuple[Any, Any] | None:
    """The stream's settings and a subscriber's policy, as the server tells them."""
    state = stage.settled()
    if state is None or state["state"] == "damaged":
        return None
    known = stage.ask("register", stream=STREAM, subscriber="bare")
    return state.get("settings"), (known or {}).get("policy")


# Files of a newer version


def newer_file(stage: Stage, chance: Random) -> None:
    """A file that a newer program wrote: its stream is refused, untouched, others are served.

    The old file put back, everything is as before.
    """
    stage.await_puts(chance.randint(20, 80))
    if not stage.server.terminate():
        stage.violation("hang", "the server did not end after SIGTERM")
    kept = stage.where / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(stage.store, kept)
    made = chance.choice(damage.NEWER)(stage.store, chance)
    if made is None:
        bring_up(stage)
        return
    stage.trouble("newer file", file=made.name)
    before = damage.prints(stage.store)
    if not stage.start():
        stage.violation("neighbour_refused", f"{made.name} of a newer version ended the server")
        raise RoundOver
    state = stage.settled()
    if state is None or state["state"] in ("open", "degraded"):
        word = None if state is None else state["state"]
        stage.violation("newer_file_taken", f"{made.name}: the stream is not refused but {word}")
        raise RoundOver  # what clients have put since would be undone by the old files
    _neighbour(stage)
    stage.server.kill()
    touched = {
        name
        for name, mark in damage.prints(stage.store).items() ^ before.items()
        if not name.startswith("quarantine")
    }
    if touched:
        stage.violation("newer_file_taken", f"{made.name}: changed: {sorted(touched)[:6]}")
    shutil.rmtree(stage.store)
    shutil.copytree(kept, stage.store)
    bring_up(stage)


def _neighbour(stage: Stage) -> None:
    """Another stream of the server takes a put."""
    item = Item(f"neighbour/{len(stage.reader.notes)}", None, ("Logs",), 2)
    with connect(stage.server.url) as client:
        try:
            answers = list(put(client, NEIGHBOUR, "Logs", [(item.bundle()["Logs"], {})]))
            act(client, "flush", stream=NEIGHBOUR)
        except FAILURES as error:
            stage.violation("neighbour_refused", str(error)[:300])
            return
    if [one["status"] for one in answers] != ["ok"]:
        stage.violation("neighbour_refused", json.dumps(answers))


def nothing(stage: Stage, chance: Random) -> None:
    """Let the clients work: the settings are the trouble."""
    stage.await_puts(chance.randint(40, 120))
