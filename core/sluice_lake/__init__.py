"""Access to the Delta tables of the lake, without Spark."""
