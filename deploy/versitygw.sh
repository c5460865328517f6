#!/usr/bin/env bash
# Puts the S3 server of `make test-s3` into the cache, built once by `go install`.
set -euo pipefail

module=github.com/versity/versitygw/cmd/versitygw
version=v1.8.0
bin="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/bin"

if [ -x "$bin/versitygw" ]; then
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "make test-s3 needs Go to build the S3 server once (https://go.dev/dl/); it found none" >&2
  exit 1
fi
mkdir -p "$bin"
echo "building versitygw $version into $bin (once, some minutes)"
GOBIN="$bin" GOFLAGS=-trimpath go install "$module@$version"
