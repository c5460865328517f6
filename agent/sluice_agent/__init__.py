"""The agent: inputs, the durable spool, request signing and upload."""
