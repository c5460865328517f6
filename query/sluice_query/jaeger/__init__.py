"""The part of Jaeger's HTTP API that Grafana's Jaeger data source and Jaeger's own page use."""
