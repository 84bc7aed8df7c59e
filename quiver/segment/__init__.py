"""Segments: where bundles are read from, for as long as they live.

A segment's life:

1. *open*: :class:`OpenSegment` gathers encoded bundles in memory, sorted into streams (one
   per slot, schema and set of dictionaries), and answers reads from there;
2. *sealed*: :func:`write_segment` lays the same bytes out as one file, which never changes
   again: temporary name, fsync, rename, directory fsync, read-only;
3. *read*: :class:`SegmentReader` reads the wanted bytes and verifies them each time, or maps
   the file and checks it once (``read_mode: mmap``);
4. *deleted*: its file is unlinked, or moved to ``quarantine/`` if it is damaged.

Where each segment is, :class:`Segments` knows, and nobody else.

================  =========================================================================
``segments``      the owner of segment numbers: where each is, and the floor
``view``          how a segment is read, wherever it is
``open_segment``  the segment in memory that takes bundles
``closing``       when a segment is full, and why one was closed
``info``          what is known about a sealed segment without reading its bundles; names
``writer``        from open to sealed
``source``        a sealed file's bytes, mapped or read on demand
``verified``      … checked against their block checksums at every read
``feed``          … handed to Arrow's reader
``reader``        bundles out of a sealed file
``salvage``       what of a damaged file is intact
``unused``        files that a crash left behind and nobody needs
``staged_file``   a transaction's file, before it is a segment
``stage_table``   all stages of a store, and the bytes they take
================  =========================================================================
"""

from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader, load_info
from quiver.segment.segments import Segments
from quiver.segment.view import SegmentView
from quiver.segment.writer import write_segment

__all__ = [
    "OpenSegment",
    "SegmentInfo",
    "SegmentReader",
    "SegmentView",
    "Segments",
    "load_info",
    "segment_path",
    "write_segment",
]
