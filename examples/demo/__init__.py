"""The promise, shown: a Spark job puts a million rows, the server is killed hard, nothing is lost.

Run it with ``make demo``.  It starts a server, a Spark job of eight tasks that put telemetry
with ``mapInArrow``, and two subscribers: ``exporter`` keeps up, ``archive`` takes its time.  In
the middle the server is killed with ``SIGKILL`` and started again; neither the job nor the
subscribers are told.  At the end a table compares what was put with what each received.

Spark needs Java.  Where it is missing and nothing has to be asked for, it is installed;
otherwise the demo says how, and puts the same rows with the plain Python client.

==================  ==================================================================
``__main__.py``     the course of it
``rows.py``         the rows: each can be told from the others, and checked
``spark_job.py``    the producer: a Spark job, in a process of its own
``plain_job.py``    … and the same without Spark
``java.py``         Java: there, installed, or how to get it
``server.py``       a real server, to be killed
``subscribers.py``  two who receive, check and remember
``report.py``       the table
==================  ==================================================================
"""
