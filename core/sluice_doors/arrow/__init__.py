"""Protobuf of large bodies to columns through Arrow; imported only where the extra `doors` is."""
