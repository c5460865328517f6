#!/bin/sh
# Build the image without a daemon, without a registry, and without Docker: deploy/container/build.sh OUTPUT.tar
# The root is made of Debian's packages by mmdebstrap, the programs are the built wheel at the versions of
# requirements.lock, and buildah writes the archive, which `docker load` and `podman load` read.
# Needs root, mmdebstrap and buildah (Debian: apt-get install mmdebstrap buildah), and the .venv of `make setup`.
set -eu

OUTPUT=$(realpath -m "${1:?usage: deploy/container/build.sh OUTPUT.tar}")
HERE=$(cd "$(dirname "$0")" && pwd)
SOURCE=$(cd "$HERE/../.." && pwd)
UV="$SOURCE/.venv/bin/uv"
PACKAGES=python3,openjdk-17-jre-headless,ca-certificates
EPOCH=$(git -C "$SOURCE" log -1 --format=%ct)
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$SOURCE/pyproject.toml")

for program in mmdebstrap buildah; do
    command -v $program > /dev/null || { echo "missing program: apt-get install $program" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "cannot build: run it as root, mmdebstrap and buildah need it" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root="$work/root"
# mmdebstrap creates files for other users, so its folder must be readable.
chmod 755 "$work"

echo "installing packages of Debian: $PACKAGES"
# The documentation and the translations of the packages are not needed; Java's package needs the folder for its pages.
# shellcheck disable=SC2016 # mmdebstrap's shell expands $1
SOURCE_DATE_EPOCH=$EPOCH mmdebstrap --quiet --variant=essential --include="$PACKAGES" \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --essential-hook='mkdir -p "$1/usr/share/man/man1"' bookworm "$root"

echo "installing sluice $VERSION"
programs="$root/opt/sluice"
site="$programs/lib/python3.11/site-packages"
mkdir -p "$site" "$programs/bin" "$work/wheel"
"$UV" build --quiet --wheel --out-dir "$work/wheel" "$SOURCE"
"$UV" pip install --quiet --python "$SOURCE/.venv/bin/python" --python-version 3.11 --target "$site" \
    --constraint "$SOURCE/requirements.lock" "sluice-gateway[up,s3] @ file://$(ls "$work"/wheel/*.whl)"
rm -rf "$site/bin"
ln -s /usr/bin/python3 "$programs/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' > "$programs/pyvenv.cfg"
printf '#!/opt/sluice/bin/python\nimport sys\n\nfrom sluice_cli.main import main\n\nsys.exit(main())\n' > "$programs/bin/sluice"
chmod 755 "$programs/bin/sluice"
cp "$HERE/health.py" "$programs/health.py"

# The root of a container is read-only, so modules that are not compiled now are compiled at every start.
chroot "$root" /opt/sluice/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/sluice/lib || true
rm -rf "$root/var/cache/apt" "$root/var/lib/apt" "$root/var/cache/debconf" "$root/var/log"/*
echo 'sluice:x:10001:10001::/var/lib/sluice:/usr/sbin/nologin' >> "$root/etc/passwd"
echo 'sluice:x:10001:' >> "$root/etc/group"
# Spark connects to itself by this name. Container runtimes replace the file; a plain chroot does not.
echo '127.0.0.1 localhost' > "$root/etc/hosts"
install -d -o 10001 -g 10001 -m 0700 "$root/var/lib/sluice" "$root/keys"
"$SOURCE/.venv/bin/python" "$HERE/contents.py" "$root" "$VERSION" > "$programs/sbom.cdx.json"

echo "writing $OUTPUT"
buildah() { command buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }
# Only Docker's format contains a health check.
export BUILDAH_ISOLATION=chroot BUILDAH_FORMAT=docker
container=$(buildah from scratch)
buildah copy --quiet "$container" "$root" / > /dev/null
rm -rf "$root"
# The same as in the Dockerfile.
buildah config --user 10001:10001 --workingdir /var/lib/sluice --env HOME=/var/lib/sluice \
    --env PATH=/opt/sluice/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --env PYSPARK_PYTHON=/opt/sluice/bin/python --env PYTHONDONTWRITEBYTECODE=1 \
    --volume /var/lib/sluice --volume /tmp --entrypoint '["sluice"]' --cmd --help "$container"
buildah config --healthcheck 'CMD python -S /opt/sluice/health.py' --healthcheck-interval 10s \
    --healthcheck-timeout 3s --healthcheck-start-period 30s \
    --label org.opencontainers.image.title=sluice --label "org.opencontainers.image.version=$VERSION" "$container"
buildah commit --quiet --rm --format docker --timestamp "$EPOCH" "$container" "docker-archive:$OUTPUT:sluice:$VERSION" > /dev/null
ls -l "$OUTPUT"
