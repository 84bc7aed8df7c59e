"""How fast, as ratios: each bar measures Quiver and its reference in the same run.

======================  ==================================================================
``bar.py``              what a bar is; interleaved repetitions, median and spread
``data.py``             the batches that are measured with
``bars/``               one file per bar, named after it
``flight/``             servers and producers for the bars over Flight
``run.py``              ``make bench``: all bars or one, a table, ``results.json``
``peers/``              ``make peers``: beside NATS JetStream and Redis Streams
``budget.py``           ``make budget``: where each microsecond of a put goes
``pictures.py``         ``make pictures``: what the documentation shows of them …
``page.py``             … and its tables
======================  ==================================================================

Absolute figures depend on the machine and on who else uses it; a ratio against something
measured in the same minute says what Quiver adds.  Nothing here asserts a speed: tests
that time are flaky.  ``--quick`` only checks that every bar still runs.
"""
