"""Code travels with the job: workers that have none of this project run it all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_client.shipping import Travels, door, pack, ship, unpack
from tests.spark.bare import bare_python

LACKING = ("quiver", "flight_service", "spark_client", "tests", "pydantic", "structlog", "numpy")


def test_a_worker_s_python_is_bare() -> None:
    """Scenario: the Python that the workers run. Guarantee: pyspark and pyarrow are there,
    and nothing of what this project needs or is."""
    code = "import importlib.util as u, sys; print([m for m in sys.argv[1:] if u.find_spec(m)])"
    found = subprocess.run(
        [str(bare_python()), "-P", "-c", code, "pyspark", "pyarrow", *LACKING],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "['pyspark', 'pyarrow']"


def test_workers_run_what_they_do_not_have(spark: SparkSession) -> None:
    """Scenario: a function that uses the client, sent to workers without it; before it, one
    that tries to import the client by itself. Guarantee: the first can't, the second works."""

    def alone(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        for _ in batches:
            pass
        # The worker may have served another test before: as if it were new.
        sys.meta_path[:] = [one for one in sys.meta_path if not hasattr(one, "quiver_code")]
        for name in [one for one in sys.modules if one.startswith("spark_client")]:
            del sys.modules[name]
        try:
            import spark_client  # noqa: F401
        except ModuleNotFoundError as error:
            yield pa.record_batch({"said": [str(error)]})

    def with_code(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_client.url import Target

        for _ in batches:
            yield pa.record_batch({"said": [str(Target.parse("grpc://h/s"))]})

    frame = spark.range(1, numPartitions=1)
    (row,) = frame.mapInArrow(alone, "said string").collect()
    assert "spark_client" in row.said
    (row,) = frame.mapInArrow(ship(with_code, "with_code"), "said string").collect()
    assert row.said == "quiver://h:8815/s"


def test_what_is_sent_is_small() -> None:
    """Scenario: a function with all its code. Guarantee: far below what Spark would have to
    broadcast (1 MiB)."""
    digest, code, thing = pack(str)
    assert len(digest) == 64
    assert len(code) + len(thing) < 200_000


class Reader(Travels):
    """Something Spark would pickle."""

    def __init__(self) -> None:
        self.state = 7


def test_objects_and_classes_travel() -> None:
    """Scenario: an object, and a data source's class, pickled as Spark does, opened by a
    Python without the project. Guarantee: both are themselves again there."""
    from pyspark import cloudpickle

    code = "import pickle, sys; thing = pickle.loads(bytes.fromhex(sys.stdin.read())); "

    def opened(thing: object, then: str) -> Any:
        done = subprocess.run(
            [str(bare_python()), "-P", "-c", code + then],
            input=cloudpickle.dumps(thing).hex(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    from spark_client.url import Target

    shipped = ship(Target.parse, "parse")
    assert opened(shipped, "print(thing('quiver://h/s').stream, thing.__name__)") == "s parse"
    again = "import pickle as p; from pyspark import cloudpickle as c; "
    assert opened(shipped, again + "print(p.loads(c.dumps(thing))('quiver://h/s').stream)") == "s"


def test_a_copy_in_the_same_process_is_of_the_same_class() -> None:
    """Scenario: packed and unpacked where the project is. Guarantee: the same classes."""
    import pickle

    copy = pickle.loads(pickle.dumps(Reader()))
    assert type(copy) is Reader
    assert copy.state == 7
    assert unpack(pack(Reader)) is Reader
    assert door.__doc__
