"""Bytes and values, both ways, and nothing else: no file is opened here.

Each module owns one layout and says it in its docstring.  A codec takes bytes and gives
a checked value or an error; what to do about an error is for the packages above.

================  =====================================================================
``crc``           the two checksums
``arrow``         Arrow's messages and IPC files
``record``        a bundle's slots and metadata, as log and segments store them
``wal``           log files
``segment``       segment files
``floor``         the segment numbers that are used up, and those that are gone
``progress``      what a subscriber has finished
``state``         the checkpoint
``keys``          a run of idempotency keys
``checked_json``  small JSON files with a checksum
================  =====================================================================
"""
