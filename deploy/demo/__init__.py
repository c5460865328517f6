"""Demonstration of the whole pipeline on this machine's log files, with a check of the result."""
