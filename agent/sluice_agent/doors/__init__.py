"""What other programs send to the agent.

In reading order: `service` (one request), `servers` (the listeners), `forward_keys` (who may send
by Fluent's protocol), `syslog`.
"""
