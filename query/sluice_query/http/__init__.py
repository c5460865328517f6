"""The service of `sluice query serve`.

In reading order: `service.py`, `runner.py` (a few queries at a time), `responses.py` (what routes
share), and the routes: `read_api.py`, `tail_api.py`, `download_api.py`, `deletes_api.py`.
"""
