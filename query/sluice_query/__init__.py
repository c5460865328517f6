"""Time-bounded search over the lake and what is not in it yet, without a JVM."""
