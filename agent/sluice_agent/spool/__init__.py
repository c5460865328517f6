"""The durable spool.

In reading order: `batching` (records into batches), `spool`, `directory` (its steps on the disk),
`format`, `request_window`, `retries`, `disk`, `parked` (what an operator does with parked batches).
"""
