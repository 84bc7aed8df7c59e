"""Quiver over the network: Arrow Flight in, Arrow Flight out, nothing foreign to Arrow users.

=============  ==================================================================
``protocol``   what goes over the wire, both ways: pyarrow and the standard library
``server``     the service: streams, puts, reads, leases, security, operation
``client``     the Python client on top of ``protocol``
``cli``        the commands that need a server
``commands``   … and the door through which they join ``quiver``
``health``     … and one of them that costs next to nothing, for container engines
=============  ==================================================================

``protocol`` and ``client`` never import :mod:`quiver`: whoever talks to a server needs
pyarrow and nothing else.
"""
