"""`sluice verify`: upload through gateways, record what happened, and compare it with the store.

In reading order: `command.py`, `uploads.py` (the clients), `recording.py` (the files of a history),
`state.py` (what the store and the answers contain), `checks.py` (the promises, as a pure function).
`make verify` runs the same clients in a cluster with faults.
"""
