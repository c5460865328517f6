"""`local_spool`: accept here, transfer to the authority later.

In reading order: `claim` (one process, one directory, one authority), `acceptor`, `transfer`,
`records` (records and blobs), `journal`, `capacity`, `expiry`, `mode_switch`.
"""
