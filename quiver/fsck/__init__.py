"""Looking at, checking, saving and mending a store's directory, without an engine.

Everything but ``repair`` only reads, needs no lock, and works on a directory that
crashed, is damaged, is being written to, or was written by the Rust crate.

::

    look ──► holdings ──► dump        saves every bundle that is sound
      │          └──────► summary     says what there is
      ├────► verify                   checks every byte
      └────► repair                   plans, and only when told to, changes

============  ===================================================================
file          what it does
============  ===================================================================
index         a log's bundles as places, to be read again when wanted
look          one consistent look at a directory, damage kept as what it is
staged        staged writes, and commits whose files are no segments yet
holdings      which bundles there are, where each is read best, which are lost
held          … the values for that, and what all directories have in common
own, rust     … the rules for our directories, and for those of the Rust crate
summary       ``quiver inspect``: files, segments, bundles, subscribers, lag
verify        ``quiver verify``: every byte, and whether the parts fit together
dump          ``quiver dump``: bundles out into plain Arrow files
repair        ``quiver repair``: the plan
mend          … and carrying it out
============  ===================================================================
"""
