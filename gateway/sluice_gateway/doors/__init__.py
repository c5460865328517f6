"""Doors: endpoints for clients that know nothing of sluice, with the same promise."""
