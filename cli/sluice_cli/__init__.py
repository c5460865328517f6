"""The `sluice` command: options, wiring and output."""
