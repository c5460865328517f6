"""Benchmarks, each with its control in the same run."""
