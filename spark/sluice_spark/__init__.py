"""Spark jobs that write accepted batches to the lake's Delta tables and maintain these tables."""
