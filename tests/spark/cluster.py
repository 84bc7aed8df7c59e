"""A Spark cluster of real processes: a master and two workers, each on an address of its own.

Its executors run :func:`tests.spark.bare.bare_python`.  A driver is a process too, since a
process has one Spark at a time and the tests' own is in use::

    done = cluster.run("spark.range(3).show()")

The script finds ``spark``, and its arguments in ``sys.argv``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pyspark

from tests.spark.bare import REPOSITORY, bare_python
from tests.wire.process import free_port

WORKERS = ("127.0.0.2", "127.0.0.3")
START_SECONDS = 180.0
DRIVER = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
"""


class Cluster:
    """Master and workers; all are ended by their ids."""

    def __init__(self, where: Path, cores: int = 1) -> None:
        self._where = where
        self._cores = cores
        self._processes: list[subprocess.Popen[str]] = []
        self.url = ""

    def start(self) -> None:
        """Start them all and wait until the master knows both workers."""
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        master = self._spawn(
            "master",
            "127.0.0.1",
            *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"),
            *("--port", str(port), "--webui-port", "0"),
        )
        heard = _Listener(master)
        heard.wait_for(r"I have been elected leader", 1)
        for address in WORKERS:
            work = self._where / f"work-{address}"
            work.mkdir()
            worker = self._spawn(
                f"worker-{address}",
                address,
                *("org.apache.spark.deploy.worker.Worker", "--host", address, "--port", "0"),
                *("--webui-port", "0", "--cores", str(self._cores), "--memory", "1g"),
                *("--work-dir", str(work), self.url),
            )
            _Listener(worker)
        heard.wait_for(r"Registering worker", len(WORKERS))

    def _spawn(self, name: str, address: str, *command: str) -> subprocess.Popen[str]:
        spark = Path(pyspark.__file__).parent
        process = subprocess.Popen(
            [str(spark / "bin" / "spark-class"), *command],
            cwd=self._where,
            env={
                **_environment(),
                "SPARK_LOCAL_IP": address,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_HOME": str(spark),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def popen(self, script: str, *arguments: str, **conf: str) -> subprocess.Popen[str]:
        """Start a driver with this script; the caller waits for it or kills it."""
        settings = {
            "spark.master": self.url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "4",
            **{name.replace("__", "."): value for name, value in conf.items()},
        }
        options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER + script, *arguments],
            cwd=self._where,
            env={
                **_environment(),
                "PYTHONPATH": str(REPOSITORY),
                "PYSPARK_PYTHON": str(bare_python()),
                "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, script: str, *arguments: str, timeout: float = 100.0, **conf: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a driver with this script to its end; ``spark__speculation="true"`` sets conf."""
        process = self.popen(script, *arguments, **conf)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def stop(self) -> None:
        """End everything that was started; executors go with their workers."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment() -> dict[str, str]:
    """Ours, without what would tell a worker where the project is, or who we are."""
    hidden = ("QUIVER_", "PYSPARK_", "SPARK_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


class _Listener:
    """Reads what a process says, so that it never waits for a reader, and looks for words."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._over = False
        assert process.stderr is not None
        threading.Thread(target=self._listen, args=[process.stderr], daemon=True).start()

    def _listen(self, said: IO[str]) -> None:
        with said:
            for line in said:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait_for(self, pattern: str, times: int) -> None:
        """Until so many lines match."""

        def found() -> bool:
            return sum(1 for line in self._lines if re.search(pattern, line)) >= times

        with self._changed:
            self._changed.wait_for(lambda: found() or self._over, START_SECONDS)
            assert found(), "".join(self._lines[-40:])
