"""The whole path once, on this machine's own logs, checking its own result."""
