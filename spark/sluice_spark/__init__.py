"""Spark jobs that carry accepted batches into Delta tables."""
