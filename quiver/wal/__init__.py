"""1. Made durable: the write-ahead log.

Everything a put was told ``durable`` about is in here from the moment it is told, until
the segment that holds it is durable itself.

The life of an entry:

1. ``format.wal.entry`` lays it out and sums it, before any lock is taken;
2. ``WalWriter.stage`` gives it a sequence and a place, under the ingest lock;
3. ``WalWriter.commit`` writes and syncs its group and tells its receipt;
4. ``WalWriter.retire`` lets its file go once all segments in it are durable;
5. or, after a crash, ``read_log`` finds it and ``repair_tail`` makes it durable again.

And of the log: ``read_log`` → ``repair_tail`` → ``WalWriter(start=contents.start())`` →
stage and commit → ``seal`` → ``close``.

================  =================================================================
``files``         names, and what is known about each file; the cursor
``capacity``      groups that wait to be written, and the bytes they will take
``log_files``     the files on disk: append, rotate, recycle, roll back
``writer``        ``WalWriter``: stage, commit, retire, seal
``group_commit``  ``Commits``: who leads a commit, who waits
``scan``          one file, from its head to wherever it ends
``contents``      what reading gives: entries, torn tails, damage
``reader``        ``read_log``: all files, and what a bad place in them means
``repair``        ``repair_tail``: cut what is torn, make durable what was read
================  =================================================================
"""
