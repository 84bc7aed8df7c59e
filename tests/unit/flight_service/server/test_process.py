"""The server's process: one allocator for Flight and Arrow."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys
import pyarrow as pa
from flight_service.server.process import YOUNG_OBJECTS, tune_process
tuned = tune_process()
print(json.dumps({
    "tuned": tuned,
    "pool": pa.default_memory_pool().backend_name,
    "young": gc.get_threshold()[0] == YOUNG_OBJECTS,
}))
"""


def test_arrow_shares_the_tuned_heap() -> None:
    """Scenario: a process is set up to serve. Guarantee: Arrow's memory comes from the
    allocator that was tuned, or both are left alone."""
    out = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    said = json.loads(out.stdout)
    assert said["young"]
    assert (said["pool"] == "system") == said["tuned"]
