"""Transactions: bundles that subscribers see together, exactly once, or not at all.

::

    begin ──► Stage.put … ──► Stage.finish ──► commit ──► ONE log entry ──► segments
                                    └──────► abort, or expiry: staged files are deleted

============  ======================================================================
``stage``     one attempt to write a part of a transaction
``commit``    the whole way of a commit: check, merge, log entry, publish; abort
``merging``   small staged files are put together, so that a commit makes few segments
============  ======================================================================
"""
