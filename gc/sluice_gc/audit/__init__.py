"""An audit of the whole store, and its certificate: auditor, tasks, certificate."""
