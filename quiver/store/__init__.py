"""The store that people use: a facade over the packages below.

==============  ====================================================================
``opening``     ``quiver.open``
``store``       ``Store``: what a user calls
``assembly``    makes the parts of a store from what recovery found
``puts``        the whole way of a put: prepare, find capacity, place, answer
``membership``  subscribers that register and leave
``schemas``     which schemas each slot has, without reading data
``status``      how a store is doing
==============  ====================================================================
"""
