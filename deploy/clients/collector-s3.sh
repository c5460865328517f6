#!/usr/bin/env bash
# Build the Collector of the benchmarks `doors` and `peers` once with Go and store it in the cache.
set -euo pipefail

version=v0.150.0
bin="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/bin"
here="$(cd "$(dirname "$0")" && pwd)"

if [ -x "$bin/otelcol-s3" ]; then
  exit 0
fi
if ! command -v go > /dev/null; then
  echo "the benchmark needs Go to build the Collector: install it from https://go.dev/dl/" >&2
  exit 1
fi
mkdir -p "$bin"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
echo "building the OpenTelemetry Collector $version in $bin (only once, takes some minutes)"
GOBIN="$work" go install "go.opentelemetry.io/collector/cmd/builder@$version"
cp -r "$here/otelcol-s3.yaml" "$here/s3exporter" "$work/"
(cd "$work" && ./builder --config otelcol-s3.yaml 2> build.log || { cat build.log >&2; exit 1; })
mv "$work/build/otelcol-s3" "$bin/otelcol-s3"
