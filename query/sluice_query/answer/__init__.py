"""How results reach the caller.

In reading order: `result.py`, `plot.py` (for a terminal), `streaming.py` (the newest first, during
the search), `following.py` and `live.py` (new records).
"""
