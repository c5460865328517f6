"""Release and demonstration tools that run from a checkout."""
