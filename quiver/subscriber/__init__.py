"""Made delivered: which subscriber has done what with which bundle, and how it is kept.

Life of a subscriber: *load* finds its progress file at start-up (it is **known**, and holds
its data), *register* brings it back, or makes a new one at a start position (it is
**registered**), *activate* ends the start-up (it is **active**, and takes bundles).  Who is
known but wasn't registered by then is an **orphan**: it goes on holding its data, can be
seen, registered late or dropped.  *unregister* gives up what it had left and removes its
file.

Life of a bundle, for each subscriber on its own: pending → claimed → acked or dropped, and
back to pending when it is deferred or its handle is lost.

================  ===========================================================
``state``         what was done with each bundle: a pure machine on bitmaps
``progress``      the same on disk: load, keep, remove, set damaged ones aside
``doorbell``      waking who waits for bundles, from anywhere
``subscriber``    one subscriber: state, bell and file behind one lock
``registry``      all subscribers of a store: coming, going, flushing
``delivery``      which bundle a subscriber gets next; seeking by time or ref
``subscription``  a subscriber's view of the store: iterate, claim, ack
``handle``        one claimed bundle as the user holds it
``lag``           how far a subscriber is behind
================  ===========================================================
"""
