"""Files in and out: Parquet, Arrow, CSV and JSON lines, told apart by their endings.

A file that is written appears under its name only when it is whole and on disk: it is
written as ``NAME.part``, closed, fsynced, renamed, and the directory fsynced.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as pj
import pyarrow.parquet as pq

from flight_service.cli.frame import usage

FORMATS: Final = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".arrows": "arrows",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
ENDINGS: Final = {
    "parquet": ".parquet",
    "arrow": ".arrow",
    "arrows": ".arrows",
    "csv": ".csv",
    "jsonl": ".jsonl",
}
CSV_BLOCK: Final = 4 << 20
STDIN: Final = "-"


def format_of(path: str, given: str | None) -> str:
    """The format of a file: as said, or by its ending."""
    if given is not None:
        if given not in ENDINGS:
            raise usage(f"{given!r} is not a format.", f"Known are {', '.join(ENDINGS)}.")
        return given
    ending = Path(path.removesuffix(".gz")).suffix.lower()
    found = FORMATS.get(ending)
    if found is None:
        raise usage(
            f"{path}: the format can't be told from the name.",
            f"Say it: --format {' | '.join(ENDINGS)}",
        )
    return found


# In


class InputFile:
    """A file as batches of at most so many rows."""

    def __init__(self, path: str, form: str, rows: int) -> None:
        self.path = path
        self._form = form
        self._rows = rows

    @property
    def total_rows(self) -> int | None:
        """How many rows, where the file says so."""
        if self._form == "parquet" and self.path != STDIN:
            return int(pq.read_metadata(self.path).num_rows)
        return None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in order."""
        try:
            for batch in self._read():
                for first in range(0, batch.num_rows, self._rows):
                    yield batch.slice(first, self._rows)
        except FileNotFoundError:
            raise usage(f"{self.path}: there is no such file.") from None
        except (pa.ArrowException, OSError) as error:
            raise usage(f"{self.path} can't be read as {self._form}: {error}") from None

    def _read(self) -> Iterator[pa.RecordBatch]:
        source: Any = sys.stdin.buffer if self.path == STDIN else self.path
        if self._form == "parquet":
            yield from pq.ParquetFile(source).iter_batches(batch_size=self._rows)
        elif self._form == "arrow":
            with pa.ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        elif self._form == "arrows":
            opened = source if self.path == STDIN else pa.OSFile(source)
            with pa.ipc.open_stream(opened) as reader:
                yield from reader
        elif self._form == "csv":
            with csv.open_csv(source, csv.ReadOptions(block_size=CSV_BLOCK)) as reader:
                yield from reader
        else:
            yield from pj.read_json(source).to_batches()


# Out


class FileWriter(Protocol):
    """What every format's writer can do."""

    def write_batch(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """JSON lines."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write_batch(self, batch: pa.RecordBatch) -> None:
        lines = [json.dumps(row, default=str, ensure_ascii=False) for row in batch.to_pylist()]
        self._sink.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        self._sink.flush()


def _open(form: str, sink: Any, schema: pa.Schema) -> FileWriter:
    makers: dict[str, Callable[[], Any]] = {
        "parquet": lambda: pq.ParquetWriter(sink, schema, compression="zstd"),
        "arrow": lambda: pa.ipc.new_file(sink, schema),
        "arrows": lambda: pa.ipc.new_stream(sink, schema),
        "csv": lambda: csv.CSVWriter(sink, schema),
        "jsonl": lambda: _Lines(sink),
    }
    writer: FileWriter = makers[form]()
    return writer


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without dictionaries, which text formats don't have."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


class OutputFile:
    """A file that is there as a whole or not at all."""

    def __init__(self, path: Path, form: str, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self._text = form in ("csv", "jsonl")
        self._part = path.with_name(path.name + ".part")
        self._file = self._part.open("wb")
        shape = (
            plain(pa.RecordBatch.from_pylist([], schema=schema)).schema if self._text else schema
        )
        self._writer = _open(form, self._file, shape)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they have the file's schema."""
        self._writer.write_batch(plain(batch) if self._text else batch)

    @property
    def nbytes(self) -> int:
        """Bytes in the file so far."""
        return self._file.tell()

    def commit(self) -> None:
        """Close it, and return once it is on disk under its name."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.rename(self.path)
        sync_directory(self.path.parent)

    def discard(self) -> None:
        """It was not to be."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.discard()


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
