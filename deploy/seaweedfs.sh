#!/usr/bin/env bash
# Build the second S3 server of `make verify` once from its Go module and store it in the cache.
# Its go.mod replaces modules, so `go install` refuses it; it is built in a copy of its source.
set -euo pipefail

module=github.com/seaweedfs/seaweedfs
version=v0.0.0-20261109003541-7506e5f91cd6
bin="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/bin"

if [ -x "$bin/weed" ]; then
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "this needs Go to build the S3 server: install it from https://go.dev/dl/" >&2
  exit 1
fi
mkdir -p "$bin"
echo "building seaweedfs $version in $bin (only once, takes about a quarter of an hour)"
source="$(mktemp -d)"
trap 'chmod -R u+w "$source"; rm -rf "$source"' EXIT
cp -r "$(go mod download -json "$module@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/." "$source"
chmod -R u+w "$source"
go -C "$source" build -trimpath -o "$bin/weed" ./weed
