"""The sluice command: settings and wiring only."""
