"""S3 and compatible servers behind the port; `sdk`, `connection`, `signing` need the extra `s3`."""
