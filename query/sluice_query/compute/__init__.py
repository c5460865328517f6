"""What DuckDB computes from the sources.

In reading order: `engine.py`, `sql.py` (records), `views.py` (histogram, fields, values,
neighbours), `series.py` (metrics).
"""
