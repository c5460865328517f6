"""The HTTP service that accepts uploads."""
