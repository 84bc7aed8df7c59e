"""Arrow's encapsulated messages and IPC files, read and written byte by byte.

===============  ===================================================================
``flatbuf``      reads the FlatBuffers that Arrow's metadata is made of
``message``      encapsulated messages: bounds and declared sizes
``fingerprint``  the canonical schema encoding and its hash
``schema``       schemas as messages, shared
``ipc``          record batches as messages: encode, parse, decode
``ipc_file``     an Arrow IPC file put together from such messages
``projection``   which bytes of a batch hold the wanted columns
===============  ===================================================================
"""
