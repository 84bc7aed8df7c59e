"""Run inside of containers, by path: nothing here is imported by a test.

==============  ==================================================================
producer.py     puts bundles, each with a key, and writes down every receipt
subscriber.py   takes bundles and writes down what came and what is finished
transaction.py  stages bundles of a transaction and commits them
spark_job.py    a Spark job that puts rows from its tasks
==============  ==================================================================
"""
