"""Fluent's forward protocol: handshake, stream, server, and messages to columns."""
