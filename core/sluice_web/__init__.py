"""HTTP serving that every sluice service shares."""
