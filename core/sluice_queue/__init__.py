"""The queue: one compare-and-swap register per lane, its producers, its fenced consumer."""
