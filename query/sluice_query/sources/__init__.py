"""Where records are read from, each batch once.

In reading order: `reading.py` (all sources, in the order that finds each batch once), `coverage.py`
and `journals.py` (what the answer may be missing), `unqueued.py`, `pending.py`, `spool.py` (batches
that are not in the lake), `pruning.py`, `rollups.py`, `dead_letters.py` (the lake).
"""
