"""Chaos: a real server, real clients in processes of their own, trouble, and a witness.

A *round* has a directory of its own and one random seed, from which everything follows:
settings, workload, which trouble and when.  Clients write down what they sent, what was
answered, what was delivered and what they acked, each into a file of its own outside of the
store.  After the trouble comes a calm: everything is put, delivered and acked to the end.
Then the judge holds the files against the promise.  The one excuse for a bundle that is
missing is a row of the store's loss ledger.

::

    make chaos MINUTES=10                          every profile in turn
    make chaos PROFILE=kill SEED=7 ROUND=3         one round again

=================  =====================================================================
``content.py``     what is put: batches that say which bundle they are, and their hash
``history.py``     what clients write down: one line each, in one order for all processes
``judge.py``       the promise as a table of invariants; a history in, violations out
``sight.py``       … the judge's view of one stream: puts, answers, deliveries, acks
``processes.py``   child processes: started, killed by their id, asked for their stacks
``server.py``      ``quiver serve`` as a process, to be killed, stopped, starved
``site/``          loaded into the server's process: a clock that jumps, a slow disk, stacks
``network.py``     a network between client and server that resets, delays and falls silent
``damage.py``      bytes flipped, files cut, files of a newer version
``disks.py``       a small file system, full when asked to be
``clients/``       the programs that put and subscribe: bare, product, embedded, recreating
``wire.py``        a few lines of bare pyarrow.flight, for bare clients and the stage
``stage.py``       one round's processes, and the trouble they can be given
``acts.py``        kinds of trouble, by name
``settings.py``    settings that are small, and other ones in every life
``profiles.py``    which settings and which acts a kind of round is made of
``round.py``       one round from start to verdict
``run.py``         many rounds, one table
=================  =====================================================================
"""
