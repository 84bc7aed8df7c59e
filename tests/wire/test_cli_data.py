"""The commands that move data, against a real server: files in, tables and files out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from flight_service.cli import files as cli_files
from flight_service.client import Client, connect
from flight_service.server import Server
from quiver.cli import app

Run = Callable[..., Result]

TABLE = pa.table(
    {
        "id": pa.array(range(250), pa.int64()),
        "body": [f"line {number}" for number in range(250)],
        "level": pa.array(["info", "warn"] * 125).dictionary_encode(),
    }
)


@pytest.fixture
def run(server: Server) -> Run:
    """Run a command against the server; it must succeed unless told otherwise."""

    def runner(*words: str, code: int = 0, stdin: bytes | None = None) -> Result:
        environment = {"QUIVER_URL": f"grpc://127.0.0.1:{server.port}", "COLUMNS": "200"}
        result = CliRunner().invoke(app, list(words), env=environment, input=stdin)
        assert result.exit_code == code, result.output
        return result

    return runner


@pytest.fixture
def q(server: Server) -> Iterator[Client]:
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        yield client


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "logs.parquet"
    pq.write_table(TABLE, path)
    return path


def ids(client: Client, slot: str = "Logs") -> list[int]:
    found: list[int] = []
    for batch in client.stream("t").batches(slot, ["id"]):
        found += batch["id"].to_pylist()
    return found


def rows_in(paths: Iterable[Path]) -> list[Any]:
    """The rows of JSON lines files, in the order of their names."""
    return [json.loads(line) for path in sorted(paths) for line in path.read_text().splitlines()]


def told(result: Result) -> Any:
    return json.loads(result.stdout)


def test_put_reads_every_format(run: Run, q: Client, tmp_path: Path, parquet: Path) -> None:
    """Parquet, Arrow file, Arrow stream, CSV, zipped CSV, JSON lines: the same rows each."""
    plain = TABLE.drop_columns(["level"])
    csv.write_csv(plain, tmp_path / "logs.csv")
    with pa.CompressedOutputStream(str(tmp_path / "zipped.csv.gz"), "gzip") as sink:
        csv.write_csv(plain, sink)
    with pa.ipc.new_file(tmp_path / "logs.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pa.ipc.new_stream(tmp_path / "logs.arrows", TABLE.schema) as writer:
        writer.write_table(TABLE)
    lines = "".join(json.dumps(row) + "\n" for row in TABLE.to_pylist())
    (tmp_path / "logs.jsonl").write_text(lines)
    names = ["logs.csv", "zipped.csv.gz", "logs.arrow", "logs.arrows", "logs.jsonl"]
    for number, path in enumerate([parquet, *(tmp_path / name for name in names)]):
        run("put", "t", str(path), "--slot", f"S{number}", "--rows", "100")
        assert ids(q, f"S{number}") == list(range(250)), path


def test_put_again_keeps_nothing_twice_unless_asked(run: Run, q: Client, parquet: Path) -> None:
    """The same file twice: known already; --again keeps it a second time."""
    first = told(run("put", "t", str(parquet), "--rows", "100", "--json"))
    assert (first["bundles"], first["rows"], first["duplicates"]) == (3, 250, 0)
    assert "3 of them known already" in run("put", "t", str(parquet), "--rows", "100").output
    assert len(ids(q)) == 250
    run("put", "t", str(parquet), "--again")
    assert len(ids(q)) == 500


def test_put_from_standard_input_with_attributes(run: Run, q: Client) -> None:
    """A pipe, and what is to be kept with each bundle."""
    run(
        *("put", "t", "-", "--format", "jsonl", "--attr", "host=a", "--attr", "run=4=2"),
        stdin=b'{"id": 1}\n{"id": 2}\n',
    )
    (bundle,) = q.stream("t").read()
    assert bundle.attributes == {"host": "a", "run": "4=2"}
    assert ids(q) == [1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["put", "t", "nowhere.csv"], "nowhere.csv can't be read"),
        (["put", "t", "x.bin"], "the format can't be told from the name"),
        (["put", "t", "x.csv", "--format", "word"], "is not a format"),
        (["put", "t", "x.csv", "--attr", "novalue"], "is not an attribute"),
        (["put", "../t", "-", "--format", "csv"], "not a valid stream name"),
        (["get", "t", "--ref", "twelve"], "A ref looks like 12.0"),
        (["get", "t", "--since", "yesterday"], "is not a time"),
        (["get", "t", "--to", "x.csv"], "add --slot NAME"),
        (["get", "nope"], "See what there is: quiver streams"),
        (["subscribe", "t", "--as", "s", "--size", "big"], "is not a number of bytes"),
        (["ack", "t", "s", "1.0", "--reject", "x", "--defer", "1s"], "not both"),
        (["streams", "--delete", "t"], "Say --yes if that is meant"),
        (["lag", "nope"], "there is no stream 'nope'"),
    ],
)
def test_mistakes_are_told_in_two_lines(
    run: Run, tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong and what to do; exit code 1; no traceback."""
    monkeypatch.chdir(tmp_path)
    run("streams", "--create", "t")
    result = run(*words, code=1)
    assert message in result.output
    assert "Traceback" not in result.output
    assert "defect" not in result.output


def test_nobody_there(server: Server) -> None:
    """No server at the address: said plainly, with the command that starts one."""
    result = CliRunner().invoke(app, ["streams", "--server", "grpc://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "no Quiver server answers at grpc://127.0.0.1:1" in result.output
    assert "quiver serve" in result.output


def test_get_shows_and_saves(run: Run, tmp_path: Path, parquet: Path) -> None:
    """As tables, as JSON, by ref, by time; and a slot's columns into each kind of file."""
    run("put", "t", str(parquet), "--rows", "100")
    shown = run("get", "t", "--rows", "2", "--limit", "1").output
    assert "line 1" in shown
    assert "98 more rows" in shown
    lines = run("get", "t", "--json", "--limit", "0", "--since", "1h").stdout.splitlines()
    assert [json.loads(line)["rows"] for line in lines] == [100, 100, 50]
    ref = json.loads(lines[2])["ref"]
    assert told(run("get", "t", "--ref", ref, "--json"))["slots"]["Logs"][0]["id"] == 200
    assert run("get", "t", "--slot", "Other", "--json").stdout == ""
    for ending in (".parquet", ".arrow", ".arrows", ".csv", ".jsonl"):
        to = tmp_path / f"out{ending}"
        answer = told(run("get", "t", "--slot", "Logs", "--to", str(to), "--json"))
        assert answer["rows"] == 250
        source = cli_files.InputFile(str(to), cli_files.format_of(str(to), None), 1000)
        assert sum(batch.num_rows for batch in source.batches()) == 250
    assert not list(tmp_path.glob("*.part"))
    narrow = tmp_path / "narrow.parquet"
    run("get", "t", "--slot", "Logs", "--columns", "body", "--to", str(narrow))
    assert pq.read_table(narrow).column_names == ["body"]


def test_tail_shows_what_comes(run: Run, parquet: Path) -> None:
    """From a ref on, so many, as tables or lines."""
    run("put", "t", str(parquet), "--rows", "100")
    assert "line 0" in run("tail", "t", "--from", "0.0", "--limit", "1").output
    lines = run("tail", "t", "--from", "0.1", "--limit", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["rows"] for line in lines] == [100, 50]


def test_subscribe_to_files_acks_after_they_are_on_disk(
    run: Run, q: Client, tmp_path: Path, parquet: Path
) -> None:
    """Drain into files, one per slot: all rows once, everything acked; then nothing is left."""
    run("put", "t", str(parquet), "--rows", "40")
    run("put", "t", str(parquet), "--rows", "125", "--slot", "Copy")
    to = tmp_path / "out"
    answer = told(run("subscribe", "t", "--as", "s", "--to", str(to), "--json"))
    assert (answer["bundles"], answer["rows"], len(answer["files"])) == (9, 500, 2)
    table = pq.read_table(next(to.glob("Logs-*.parquet")))
    assert table["id"].to_pylist() == list(range(250))
    assert q.stream("t").lag("s").bundles == 0
    again = told(run("subscribe", "t", "--as", "s", "--to", str(to), "--json"))
    assert (again["bundles"], again["files"]) == (0, [])


def test_files_roll_by_size_and_schema(run: Run, tmp_path: Path, parquet: Path) -> None:
    """A tiny size makes many files; another schema makes another file; no row twice."""
    run("put", "t", str(parquet), "--rows", "50")
    pq.write_table(TABLE.drop_columns(["body"]), parquet)
    run("put", "t", str(parquet), "--rows", "50")
    to = tmp_path / "out"
    words = ("subscribe", "t", "--as", "s", "--to", str(to), "--format", "jsonl", "--json")
    answer = told(run(*words, "--size", "1KiB"))
    assert len(answer["files"]) == 10
    assert [row["id"] for row in rows_in(to.iterdir())] == [*range(250), *range(250)]


def test_a_crash_between_files_and_acks_leaves_no_row_twice(
    run: Run, q: Client, tmp_path: Path, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are there, the ack never came: the next run replaces them, also when it
    cuts them differently and a slot no longer has a file of that name."""
    run("put", "t", str(parquet), "--rows", "50")
    run("put", "t", str(parquet), "--rows", "50", "--slot", "Late")
    to = tmp_path / "out"
    words = ["subscribe", "t", "--as", "s", "--to", str(to), "--format", "jsonl"]
    with monkeypatch.context() as broken:
        broken.setattr(
            "flight_service.client.subscription.Subscription.flush",
            lambda *args, **kwargs: (_ for _ in ()).throw(KeyError("the power went")),
        )
        broken.setattr("flight_service.client.bundle.Delivered.ack", lambda self, **kwargs: None)
        run(*words, code=1)
    assert {path.name.partition("-")[0] for path in to.iterdir()} == {"Logs", "Late"}
    q.stream("t").register("s", backoff_ms=0)
    run(*words, "--size", "1KiB")
    for slot in ("Logs", "Late"):
        seen = [row["id"] for row in rows_in(to.glob(f"{slot}-*"))]
        assert seen == list(range(250)), slot
    assert not list(to.glob("*.part"))


def test_subscribe_to_standard_output(run: Run, q: Client, parquet: Path) -> None:
    """A line per bundle, acked; a limit leaves the rest."""
    run("put", "t", str(parquet), "--rows", "50")
    lines = run("subscribe", "t", "--as", "s", "--limit", "2").stdout.splitlines()
    assert [len(json.loads(line)["slots"]["Logs"]) for line in lines] == [50, 50]
    assert q.stream("t").lag("s").bundles == 3


def test_ack_reject_and_defer_by_ref(run: Run, q: Client, parquet: Path) -> None:
    """Outcomes from the command line; what could not be taken makes exit code 1."""
    run("put", "t", str(parquet), "--rows", "50")
    run("subscribers", "t", "--add", "s")
    assert "2 acked" in run("ack", "t", "s", "0.0", "0.1").output
    assert told(run("ack", "t", "s", "0.2", "--reject", "bad", "--json"))["taken"] == 1
    assert q.stream("t").lag("s").bundles == 2
    assert "0.9: unknown" in run("ack", "t", "s", "0.9", code=1).output
    run("ack", "t", "s", "0.3", "--defer", "5m", code=1)
