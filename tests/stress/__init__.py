"""Many threads on the real disk: nothing lost, nothing twice, nobody left waiting.

Everything is set tiny, so that files turn over all the time, and threads are made to
switch as often as the interpreter can.  A run that hangs prints every thread's stack.
"""
