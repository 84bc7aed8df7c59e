"""The proof as a product: operations, damage, settings, clock, interleavings, crashes.

Other suites try one kind of trouble at a time; every serious defect lay where two kinds meet.
Here one seeded run mixes them all, on the real engine and the recording disk::

    seed ──► steps ──► World (store, disk, clock, scheduler) ──► Facts ──► judge
                          ▲                                        what was promised
                          └── damage, kills, power cuts, repair

Only the public face of the store is used, so the suite outlives a rebuilding of its inside.

============= ====================================================================
file          what is in it
============= ====================================================================
facts         what was put, answered, delivered, acked; what damage touched
world         a store and everybody who uses it; every call writes its facts
copies        which files hold which bundle, before and after damage
judge         the promise, one function for each sentence
steps         what may happen next, drawn from the seed
interleavings named orders of two calls, tried at every point of one of them
run           runs, replays, and the table
mutants       the engine broken on purpose: each must be noticed
============= ====================================================================

The oracle allows nothing to be missing but what the ledger names, and the ledger nothing but
what damage touched or a policy dropped.
"""
