"""docs/spark.md is true: its examples run, in their order, and its tables are the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_client.options import TABLE
from spark_client.reference import update
from tests.wire.process import ServerProcess

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.mark.timeout(420)
def test_the_page_runs_as_it_stands(spark: SparkSession, server: ServerProcess) -> None:
    """Scenario: every example of the page, one after the other, against a real server, on
    workers that have pyspark and pyarrow alone. Guarantee: each works."""
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 9
    names: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        code = block.replace(":8815", f":{server.port}")
        exec(compile(code, f"docs/spark.md, block {number}", "exec"), names)


def test_the_tables_are_the_codes() -> None:
    """Scenario: the page's tables. Guarantee: what the code would write."""
    page = PAGE.read_text()
    assert update(page) == page, "run: python -m spark_client.reference docs/spark.md"
    for one in TABLE:
        assert f"`{one.name}`" in page


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_pipeline_counts_every_log_once(tmp_path: Path) -> None:
    """Scenario: the telemetry example, its query stopped and started again. Guarantee: it ends
    well: all logs counted, no rate twice, and the Parquet is there."""
    done = subprocess.run(
        [sys.executable, "examples/telemetry.py", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "30,000 logs put, 30,000 counted, 0 rates twice" in done.stdout
    assert list((tmp_path / "rates.parquet").glob("*.parquet"))


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_demo_with_spark(tmp_path: Path) -> None:
    """Scenario: make demo with fewer rows; a kill -9 in the middle. Guarantee: nothing lost,
    nothing doubled, and Spark it was."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--rows", "200000"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "a Spark job of 8 tasks" in done.stdout
    for row in ("lost", "doubled", "bundles not as put"):
        [line] = [one for one in done.stdout.splitlines() if re.match(rf"\W+{row} ", one)]
        assert re.findall(r"\d+", line) == ["0", "0"], line
