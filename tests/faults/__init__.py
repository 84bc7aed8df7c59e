"""What the store does when the disk fails it, or gives back other bytes than it was given.

==================  =====================================================================
``world``           a small store, a workload that notes what it was promised, and a look
                    at what is left
``test_nth_call``   every call of the workload fails once, in every way a call can fail
``test_flips``      every byte of every file flipped, every length cut
``test_missing``    files missing, swapped, doubled, put back from an earlier day
``test_full_disk``  no room: in memory, and on a real small file system
``test_promises``   the defects known from the Rust crate, each as a test of this one
==================  =====================================================================
"""
