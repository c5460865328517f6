"""Doors on separate ports, which gateway and agent share: OTLP over gRPC and Fluent forward."""
