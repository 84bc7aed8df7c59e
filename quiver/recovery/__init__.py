"""From what a crash left to a store.

::

    survey ──► fates ──► consistency ──► recover ──► Recovered
    what the   what each  do the files    refuse,     log, segments, stages, subscribers,
    files say  number is  vouch for       or act      keys, versions, ledger
                          each other

The offline tools use the same survey, fates and rules: they print or mend what an open would
refuse or do.

===============  ===================================================================
``survey``       reads the directory: small files, segments, the log
``fates``        what each segment number stands for
``consistency``  files that contradict each other: missing, swapped, of another day
``losses``       what counts as lost, and for which subscribers
``replay``       bundles, keys, names and commits out of log entries
``stages``       what staged files and commits mean after a crash
``recover``      the decision table, and carrying it out
``progress``     reports a long recovery while it runs
``rust``         directories that the Rust crate wrote
===============  ===================================================================
"""
