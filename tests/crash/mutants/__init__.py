"""The engine with one fault each: a tester that doesn't notice is no tester.

A mutant changes one thing in the running process: a sync left out, two steps in the
other order, something forgotten at the start.  The explorer must then find a state that
breaks the promise.  :func:`hunt` tells by which invariant, and after how many states.

Four changes look like faults and are none that a crash can show; they are not listed:

- a segment's directory not synced after its rename, in a store with a log: the log still
  has the bundles, and the floor, which is written before any log file goes, lies in the
  same directory and syncs it.  (Without a log it is listed: ``segment_name_unsynced``.)
- a torn tail not cut off at the start, as long as a terminator is put behind the last
  sound entry: the file is never appended to again.  (With neither it is listed.)
- the cursor written late, early or never: it is a hint for the Rust crate.
- the reserve's file not synced: nothing rests on it.

==================  ==================================================================
``tools.py``        the list of mutants, and ways to change a running engine
``writing.py``      a sync left out, a failed one believed, a claim that isn't true
``order.py``        the right steps, one too early or too late
``recovery.py``     something not read back, not finished, or done twice
``committing.py``   transactions: promised too early, forgotten, or seen in part
``hunt.py``         exploring until a mutant is noticed, and the report
==================  ==================================================================
"""

from __future__ import annotations

from tests.crash.mutants import committing, order, recovery, writing
from tests.crash.mutants.tools import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "committing", "order", "recovery", "writing"]
