"""Acceptance journals: reading, processing and removing them, and the time that they prove."""
