"""The acceptance journal of a worker: `book` decides without I/O, `writer` registers and writes."""
