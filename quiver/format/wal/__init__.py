"""The write-ahead log's files.

===========  =======================================================================
``header``   the head of a log file
``entry``    the entries: bundles, slot names, watermarks, seals, commits
``scan``     finding entries in a file's bytes
``commit``   a transaction's entry
``cursor``   the hint of where to start
===========  =======================================================================
"""
