"""The durable queue that lives in the object store."""
