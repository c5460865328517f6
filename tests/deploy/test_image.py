"""The image, built without a daemon: who it runs as, what it contains, and how large it is.

The build installs packages of Debian and of Python, and takes some minutes.
"""

import json
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.deploy_tools import ROOT

SIZE_RATIO_MAX = 1.2
NEEDED = ("python3", "openjdk-17-jre-headless", "ca-certificates")
"""The packages of Debian that the roles need; their dependencies are needed too."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]


@dataclass(frozen=True)
class Image:
    """An unpacked image.

    Attributes:
        config: Its configuration.
        root: Its files.
        files_bytes: The size of its files.
    """

    config: dict[str, Any]
    root: Path
    files_bytes: int


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    for program in ("mmdebstrap", "buildah"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {program}")
    if os.getuid() != 0:
        pytest.skip("mmdebstrap and buildah need root here")
    folder = tmp_path_factory.mktemp("image")
    archive = folder / "sluice.tar"
    if "SLUICE_TEST_IMAGE" in os.environ:  # an archive that exists saves the build
        archive.symlink_to(os.environ["SLUICE_TEST_IMAGE"])
    else:
        subprocess.run([ROOT / "deploy/container/build.sh", archive], check=True, timeout=3_000)
    with tarfile.open(archive) as parts:
        parts.extractall(folder / "parts", filter="data")
    archive.unlink()
    (manifest,) = json.loads((folder / "parts" / "manifest.json").read_text())
    config = json.loads((folder / "parts" / manifest["Config"]).read_text())
    root, size = folder / "root", 0
    root.mkdir(mode=0o755)
    for layer in manifest["Layers"]:
        with tarfile.open(folder / "parts" / layer) as files:
            size += sum(one.size for one in files if one.isfile())
        subprocess.run(["tar", "-xf", folder / "parts" / layer, "-C", root], check=True)
    shutil.rmtree(folder / "parts")
    yield Image(config, root, size)
    shutil.rmtree(folder)


def test_it_is_not_root_and_has_a_health_check(image: Image) -> None:
    config = image.config["config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["sluice"]
    assert config["Healthcheck"]["Test"][0].startswith("CMD")
    assert "/opt/sluice/health.py" in " ".join(config["Healthcheck"]["Test"])
    assert "/var/lib/sluice" in config["Volumes"]
    assert "PYTHONDONTWRITEBYTECODE=1" in config["Env"]


def test_it_is_not_much_larger_than_what_it_needs(image: Image) -> None:
    bill = json.loads((image.root / "opt/sluice/sbom.cdx.json").read_text())
    sizes = {one["bom-ref"]: int(one["properties"][0]["value"]) for one in bill["components"]}
    edges = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    wanted = [
        one["bom-ref"]
        for one in bill["components"]
        if one["purl"].startswith("pkg:pypi/") or one["name"] in NEEDED
    ]
    assert any(one.startswith("pkg:pypi/pyspark@") for one in wanted)
    needed: set[str] = set()
    while wanted:
        one = wanted.pop()
        if one not in needed:
            needed.add(one)
            wanted += edges.get(one, [])
    compiled = sum(one.stat().st_size for one in (image.root / "opt").rglob("*.pyc"))
    needed_bytes = sum(sizes[one] for one in needed) + compiled
    print(f"image {image.files_bytes / 1e6:.0f} MB, needed {needed_bytes / 1e6:.0f} MB")
    assert image.files_bytes / needed_bytes <= SIZE_RATIO_MAX


def test_it_starts_without_rights_and_without_compiling(image: Image) -> None:
    """In a separate mount namespace, with a read-only root, as the image's user, also Spark."""
    inside = "; ".join(
        (
            *("cd", "id -u", "touch /x 2>&1", "set -e", "sluice init", "sluice doctor | tail -1"),
            *("sluice query -q x", "java -version 2>&1 | head -1"),
            *("sluice reconciler --once", "sluice spark ingest --once", "ls .sluice/lake"),
            "python -c 'import sluice_cli.main as m; print(m.__cached__)'",
            "ls $(python -c 'import sluice_cli.main as m; print(m.__cached__)')",
        )
    )
    clean = "/usr/bin/env -i PATH=/opt/sluice/bin:/usr/bin:/bin HOME=/var/lib/sluice"
    clean += " PYTHONDONTWRITEBYTECODE=1"
    commands = "\n".join(
        (
            "set -e",
            f"mount --bind {image.root} {image.root}",
            f"mount -o remount,ro,bind {image.root}",
            # The launcher of Java finds its folder by /proc.
            f"mount --rbind /proc {image.root / 'proc'}",
            f"mount --rbind /dev {image.root / 'dev'}",
            f"mount -t tmpfs -o mode=1777 tmpfs {image.root / 'tmp'}",
            f"mount -t tmpfs -o uid=10001,gid=10001,mode=0700 tmpfs {image.root}/var/lib/sluice",
            f"exec chroot --userspec=10001:10001 {image.root} {clean} sh -c {shlex.quote(inside)}",
        )
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", commands],
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert shown.startswith("10001\n")
    assert "Read-only file system" in shown
    assert "0 results" in shown
    assert "openjdk" in shown
    assert "\nv1\n" in shown, "Spark made no tables"
