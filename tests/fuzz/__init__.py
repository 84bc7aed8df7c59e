"""Readers fed with anything: typed errors only, no hang, no memory without end.

===============  ========================================================================
``targets``      the readers, good files to start from, and how to make a checksum fit
``mutations``    small changes to bytes, as values that Hypothesis can shrink
``test_fuzz``    some thousand changed files for each reader, the same every time
``__main__``     as long as you like: ``python -m tests.fuzz wal --seconds 60``, by
                 atheris (coverage-guided, the extra ``fuzz``) or at random without it
===============  ========================================================================
"""
