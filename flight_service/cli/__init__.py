"""The commands of ``quiver`` that run a server or talk to one.

They join the ``quiver`` command through entry points: the library knows nothing about them.
All but ``serve`` are made of the client's words only.

=============  ==================================================================
serve.py       ``quiver serve``: run a server; ``quiver token``
logs.py        … and its log
put.py         ``quiver put``: files in
get.py         ``quiver get``, ``quiver tail``: look
subscribe.py   ``quiver subscribe``, ``quiver ack``: receive and finish
streams.py     ``quiver streams``, ``quiver subscribers``, ``quiver lag``
status.py      ``quiver status``, also as a live view
health.py      ``quiver health``: is it ready
bench.py       ``quiver bench``: how fast is it here
completion.py  ``quiver completion``: for the shell
files.py       Parquet, Arrow, CSV and JSON lines, in and out
show.py        bundles for people and for programs
frame.py       connection options, errors, times and refs as people type them
=============  ==================================================================
"""
