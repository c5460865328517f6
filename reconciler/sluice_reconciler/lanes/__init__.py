"""Lanes of the queues: what each lane was given, who may append to it, and its repair."""
