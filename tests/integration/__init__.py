"""Across containers: the images, the compose file and the pipeline, with real outages.

Every test has a compose project of its own, on ports that are free, and takes it down again.
Where there is no Docker engine the tests are skipped and say so; with
``QUIVER_REQUIRE_DOCKER=1`` (as in CI) they fail instead.

===============  ==================================================================
engine.py        the docker command, with a limit on everything
images.py        the images, built once for the files they are made of
project.py       one compose project: start, break, mend, look, take down
journal.py       what programs in containers have said, as values
programs/        what runs inside: producers and subscribers that keep a journal
conftest.py      … and what is kept when a test fails
===============  ==================================================================
"""
