"""The only door to the disk: nothing else in Quiver calls ``os`` or ``open``.

It knows no formats.  A store's life with it:

1. ``Disk(PosixDisk(root))``; ``mkdir("")`` makes the root, ``StoreLock`` keeps it ours;
2. ``Reserve`` sets aside bytes so that a full disk can't stop acks and progress;
3. new files are written, fsynced, renamed, and their directory fsynced, before anything
   relies on them; ``Disk.replace`` does all of that for small files;
4. the first fsync that fails latches ``Poison``: from then on nothing is written.

===============  ===============================================================
``seam``         the calls a disk must offer, as two protocols
``posix``        the real disk
``descriptors``  its descriptors: closed in a forked child, some kept in reserve
``direct``       … written past the page cache, for segments
``disk``         ``Disk`` and ``File``: the seam's calls with Quiver's errors
``poison``       the latch that a failed fsync throws
``lock``         one writer per store
``reserve``      bytes kept back for a full disk
===============  ===============================================================
"""
