#!/usr/bin/env bash
# Build the S3 server of `make test-s3` once with `go install` and store it in the cache.
set -euo pipefail

module=github.com/versity/versitygw/cmd/versitygw
version=v1.8.0
bin="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/bin"

if [ -x "$bin/versitygw" ]; then
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "make test-s3 needs Go to build the S3 server: install it from https://go.dev/dl/" >&2
  exit 1
fi
mkdir -p "$bin"
echo "building versitygw $version in $bin (only once, takes some minutes)"
GOBIN="$bin" GOFLAGS=-trimpath go install "$module@$version"
