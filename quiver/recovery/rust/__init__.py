"""Directories that the Rust crate wrote: read, and taken over by the first open.

==============  ====================================================================
``foreign``     which of the crate's log entries are in its segments already
``alignment``   finds a damaged segment's bundles in the log by comparing contents
``adoption``    its log becomes segments of ours; a crash in between goes on with it
==============  ====================================================================
"""
