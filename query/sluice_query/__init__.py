"""Time-bounded search over the lake, without a JVM."""
