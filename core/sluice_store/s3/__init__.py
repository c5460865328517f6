"""S3 and compatible servers behind the port.

`sdk`, `connection` and `signing` require the extra `s3`. `store` and `exchange` do not: the fake in
memory uses them too.
"""
