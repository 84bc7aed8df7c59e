"""What a producer may send: slots, checks, and the bytes that log and segments will hold.

A bundle is up to 64 optional slots, one record batch each.  All work that needs no lock is done
here, before a put takes one: names become slot numbers, batches are checked and encoded as
Arrow IPC messages, the content hash for its key is taken.

================  ==================================================================
``slots``         the table of slot names and numbers; what may be a slot's name
``preparing``     from batches or IPC streams to a prepared bundle
``content_hash``  whether two bundles hold the same values, whatever their layout
``event_time``    the lowest and highest event time of a bundle
================  ==================================================================
"""
