"""S3 and what speaks like it, behind the port.

`sluice_store.s3.opening` needs the extra `s3`; the rest does not, the fake in memory uses it too.
"""
