"""What a store remembers besides its bundles: keys, committed versions, losses.

Each of these is bounded, survives crashes through the checkpoint or files of its own, and holds no
lock.  Writing them is upkeep's job (:mod:`quiver.upkeep.checkpoint_files`).

================  ==================================================================
``key_window``    idempotency keys: what a repeat is answered with
``key_runs``      the same on disk: one immutable file per retired log file
``app_versions``  the versions that each application has committed
``ledger``        the loss ledger: every bundle that somebody did not get, and why
================  ==================================================================
"""
