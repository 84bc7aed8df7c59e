"""The segment file.

============  ======================================================================
``file``      directory, footer and trailer
``manifest``  the table of bundles
``blocks``    checksums of every 16 KiB
``guard``     the checksum of directory and manifest
``stage``     a staged file: its name and its label
============  ======================================================================
"""
