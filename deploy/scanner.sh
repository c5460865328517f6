#!/bin/sh
# Install the scanner of `tests/integration/console/test_scanner.py`, once, into ~/.cache/sluice/scanner.
set -eu

SCANNER="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/scanner"
PYTHON="${PYTHON:-python3}"
WHEEL="wapiti3==3.2.3"

if [ "$(cat "$SCANNER/wheel" 2> /dev/null)" != "$WHEEL" ]; then
    "$PYTHON" -m venv "$SCANNER"
    "$SCANNER/bin/python" -m pip install --quiet --disable-pip-version-check "$WHEEL"
    echo "$WHEEL" > "$SCANNER/wheel"
fi
"$SCANNER/bin/wapiti" --version 2> /dev/null | tail -1
