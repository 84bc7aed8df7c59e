"""kill -9: a real process on the real disk, killed at any moment, and an outside witness.

==============  ========================================================================
``victim``      the process that dies: threads that put, a subscriber that acks, upkeep
``witness``     what it said before it died, line by line, kept outside of it
``rounds``      start, kill, look at what is left, again in the same directory
``test_kill``   some rounds; ``make soak`` and ``make prove`` do hundreds
==============  ========================================================================
"""
