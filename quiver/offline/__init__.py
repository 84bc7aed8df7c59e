"""Looking at, checking, saving and mending a store's directory, without an engine.

Everything but ``repair`` only reads, needs no lock, and works on a directory that
crashed, is damaged, is being written to, or was written by the Rust crate.

What the tools find and what it means is decided where an open decides it: in
:mod:`quiver.recovery.survey`, :mod:`quiver.recovery.fates`, :mod:`quiver.recovery.consistency` and
:mod:`quiver.recovery.losses`.

::

    look ──► inventory ──► dump        saves every bundle that is sound
      │          ├───────► summary     says what there is
      │          └───────► verify      checks every byte
      └────► repair ─────► mend        plans, and only when told to, changes

============  ===================================================================
file          what it does
============  ===================================================================
look          the survey of a directory that may be written to meanwhile
index         a log's bundles as places, to be read again when wanted
inventory     which bundles there are, where each is read best, which are lost
rust          … in directories of the Rust crate
taking        looking and taking the inventory in one call
summary       ``quiver inspect``: files, segments, bundles, subscribers, lag
verify        ``quiver verify``: every byte, and whether the parts fit together
dump          ``quiver dump``: bundles out into plain Arrow files
repair        ``quiver repair``: the plan
mend          … and carrying it out
============  ===================================================================
"""
