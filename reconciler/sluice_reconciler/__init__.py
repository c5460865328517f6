"""The reconciler: finds every accepted batch, indexes it, and enqueues it exactly once."""
