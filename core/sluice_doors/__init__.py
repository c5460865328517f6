"""Decoders of the requests of other clients: bytes to columns, without I/O (`docs/doors.md`)."""
