"""Every crash a workload can meet, tried: the store's promise, checked state by state.

A seeded workload runs on the real engine over a disk that records each change.  Then, at
every point of that record, the explorer builds the states a power cut may leave there,
opens the store in each, and compares what it finds with what had been promised by then.

=================  ===================================================================
``disk.py``        the recording disk with failing fsyncs, and the record folded
``oracle.py``      what has been promised so far: bundles, progress, subscribers
``notes.py``       what a workload writes down between the records of the disk
``look.py``        what a store holds: the one place that looks behind its front
``world.py``       a store, its disk and its users; writes the notes
``foreign.py``     directories of the Rust crate to begin with
``profiles.py``    kinds of workloads: which settings, which steps how often
``workloads.py``   generated programs of puts, acks, restarts and full disks
``states.py``      the legal states at one point of the record
``invariants.py``  the promise, one function for each sentence of it
``walk.py``        through a record, point by point
``checker.py``     one state: opened, looked at, used, opened again
``explorer.py``    all states of a workload; a second crash inside recovery
``run.py``         many workloads, several processes, one result
``mutants/``       the engine with one fault each: every one must be noticed
``__main__.py``    run it, in parallel; replay one state by its number
=================  ===================================================================
"""
