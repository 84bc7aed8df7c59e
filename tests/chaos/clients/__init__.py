"""The programs of a round, each a process of its own: ``python -m tests.chaos.clients.<name>``.

==================  ==================================================================
``job.py``          what a program is told, and the flags it looks at meanwhile
``bare.py``         puts and subscribes with bare pyarrow.flight, as any client could
``product.py``      the same with ``flight_service.client``, and transactions
``embedded.py``     a store of its own, opened with ``quiver.open``; forks if told to
``recreating.py``   deletes and creates a stream, with late acks and old tickets
==================  ==================================================================
"""
