"""The question of a query: `request.py`, `filters.py`, `parameters.py` (its parameters as text)."""
