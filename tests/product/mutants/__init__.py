"""The engine broken on purpose: each fault must be noticed, by a sentence that is named.

There is one for each defect that the product was built to find, one for each row of the
owner's table, one for each named interleaving, and some for what else is promised: commits that
come again, second copies, keys and names after a repair, drops by a policy.
:func:`~tests.product.mutants.hunt.hunt` runs the product, or the interleaving, with the fault
until a sentence of the promise is broken; all runs are seeded and bounded.

Some defects need what the product does not have: a server, forks, a limit on descriptors.
Those are brought back in another process, which runs the test that must fail then.

==================  ==================================================================
``tools.py``        the list of mutants
``defects.py``      a defect each
``owner.py``        a row of the owner's table each
``interleaved.py``  a named interleaving each
``promises.py``     a promise each that other faults don't break
``elsewhere.py``    defects that another suite must find
``plugin.py``       pytest with a mutant in the process
``hunt.py``         running until a mutant is noticed, and the report
==================  ==================================================================
"""

from __future__ import annotations

from tests.product.mutants import defects, elsewhere, interleaved, owner, promises
from tests.product.mutants.tools import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "defects", "elsewhere", "interleaved", "owner", "promises"]
