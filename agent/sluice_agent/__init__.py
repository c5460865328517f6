"""Inputs, durable spool, signing and upload."""
