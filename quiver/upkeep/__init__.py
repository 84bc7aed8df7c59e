"""Everything that happens to a store besides puts and deliveries.

One thread at a time does upkeep, under the maintenance lock.

====================  ==============================================================
``upkeep``            decides what is due, and in which order it is done
``sealing``           writes closed segments and retires the log files they cover
``publishing``        turns a committed transaction's staged files into segments
``sweeping``          deletes what retention allows
``retention``         which segments may be deleted, and why: a pure function
``healing``           a segment file that turns out damaged while it is served
``checkpoint_files``  writes checkpoint, floor and progress; records losses
``admission``         whether a put may come in, by disk and memory budget
``maintenance_lock``  the lock; once shut, the directory may have a new owner
``background``        the threads that do upkeep and group commits for many stores
====================  ==============================================================
"""
