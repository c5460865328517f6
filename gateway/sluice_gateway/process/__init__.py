"""The processes of a gateway.

In reading order: `processes` (several on one port), `worker` (one: open, serve, drain), `app` (its
parts), `serving` (its ports), `readiness`.
"""
