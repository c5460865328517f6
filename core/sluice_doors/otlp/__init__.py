"""OTLP: over HTTP in protobuf and JSON, and over gRPC."""
