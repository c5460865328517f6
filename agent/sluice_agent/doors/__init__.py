"""What other programs send to the agent.

In reading order: `service` (one request), `blocks` (its records), `servers` (the listeners),
`senders` and `forward_keys` (who may send), `syslog`.
"""
