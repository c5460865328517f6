"""The page of the console, and the files of other projects in it."""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
VENDOR = ROOT / "console" / "sluice_console" / "static" / "vendor"
PACKAGES: list[dict[str, Any]] = tomllib.loads((VENDOR / "vendor.toml").read_text())["package"]


def test_every_file_is_listed_with_its_hash() -> None:
    listed = {file["name"]: file["sha256"] for one in PACKAGES for file in one["file"]}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "vendor.toml"
    }
    assert found == listed


def test_every_package_has_its_licence() -> None:
    assert all((VENDOR / f"LICENSE.{one['name']}").exists() for one in PACKAGES)


@pytest.mark.skipif("SLUICE_TEST_NPM" not in os.environ, reason="set SLUICE_TEST_NPM=1: needs npm")
@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: str(one["name"]))
def test_the_files_are_those_of_the_npm_packages(package: dict[str, Any], tmp_path: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None, "npm is not installed"
    name = f"{package['name']}@{package['version']}"
    subprocess.run([npm, "pack", name], cwd=tmp_path, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as packed:
        for file in package["file"]:
            member = packed.extractfile(f"package/{file['path']}")
            assert (VENDOR / file["name"]).read_bytes() == member.read(), file["name"]


INDEX = ROOT / "console" / "sluice_console" / "static" / "index.html"


def test_the_import_map_precedes_every_module() -> None:
    """A preloaded module that is cached is resolved before the parser has read a later map.

    Names like `preact` are then unknown to it for the life of the page, which shows no error.
    """
    page = INDEX.read_text(encoding="utf-8")
    modules = [found.start() for found in re.finditer(r'rel="modulepreload"|type="module"', page)]
    assert modules
    assert page.index('type="importmap"') < min(modules)
