"""Bytes and values, both ways, and nothing else: no file is opened here.

Each module owns one layout and says it in its docstring.  A codec takes bytes and gives
a checked value or an error; what to do about an error is for the packages above.

====================  =====================================================================
``crc``               the two checksums
``flatbuf``           reads the FlatBuffers that Arrow's metadata is made of
``message``           Arrow's encapsulated messages: bounds and declared sizes
``fingerprint``       the canonical schema encoding and its hash
``schema``            schemas as messages, shared
``ipc``               record batches as messages: encode, parse, decode
``ipc_file``          an Arrow IPC file put together from such messages
``record``            a bundle's slots and metadata, as log and segments store them
``segment``           directory, footer and trailer of a segment file
``manifest``          a segment's table of bundles
``wal_header``        the head of a log file
``wal_entry``         the entries of a log file
``cursor``            the log's hint of where to start
``floor``             the segment number that never falls
``progress``          what a subscriber has finished
``state``             the checkpoint
====================  =====================================================================
"""
