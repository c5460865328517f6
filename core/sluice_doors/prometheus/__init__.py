"""Remote write of Prometheus, and the messages of remote read."""
