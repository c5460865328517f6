"""The protocols of clients that know nothing of sluice (`docs/doors.md`).

Begin with `table.py`, then a protocol, for example `loki/push.py`.
"""
