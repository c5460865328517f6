"""Remote write of Prometheus."""
