"""The part of Prometheus' HTTP API with which it, and Grafana, read metrics."""
