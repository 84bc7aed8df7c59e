"""Bars over Flight: servers and producers, each a process of its own.

================  ========================================================================
``discard.py``    R: a Flight server that reads and throws away, what Flight itself costs
``producer.py``   puts bundles with a window in flight, for a server of either kind
``processes.py``  starts and ends them, and reads what processor time a server took
``puts.py``       one repetition of a put bar, with any number of producers
``threads.py``    which of a server's threads takes how much of a put
``reads.py``      one repetition of a read bar
================  ========================================================================
"""
