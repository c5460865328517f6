"""Write the bill of materials of an image's root: `contents.py ROOT VERSION`, CycloneDX in JSON.

Each component has the size of its files, so that a test can compare the image with what it needs.
"""

import json
import re
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

_STATUS: Final = "var/lib/dpkg/status"
_LISTS: Final = "var/lib/dpkg/info"
SIZE_PROPERTY: Final = "sluice:installed-bytes"


def debian_packages(root: Path) -> Iterator[dict[str, Any]]:
    """Yield each package of Debian that is installed in a root."""
    for text in (root / _STATUS).read_text(encoding="utf-8").split("\n\n"):
        fields = HeaderParser().parsestr(text)
        if "installed" in fields.get("Status", ""):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            needs = re.findall(r"[a-z0-9][a-z0-9+.-]+(?=[\s,:(|]|$)", fields.get("Depends", ""))
            yield component(name, version, purl, _listed_bytes(root, name)) | {"needs": needs}


def _listed_bytes(root: Path, name: str) -> int:
    lists = (root / _LISTS).glob(f"{name}*.list")
    names = next(
        (one for one in lists if one.name.partition(":")[0].removesuffix(".list") == name), None
    )
    if names is None:
        return 0
    paths = (root / line.lstrip("/") for line in names.read_text(encoding="utf-8").splitlines())
    return sum(_size(one) for one in paths)


def _size(path: Path) -> int:
    return 0 if path.is_symlink() or not path.is_file() else path.stat().st_size


def python_packages(root: Path) -> Iterator[dict[str, Any]]:
    """Yield each Python package that is installed in a root."""
    for folder in sorted((root / "opt/sluice/lib").glob("python*/site-packages/*.dist-info")):
        fields = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
        name, version = fields["Name"], fields["Version"]
        lines = (folder / "RECORD").read_text(encoding="utf-8").splitlines()
        size = sum(_size(folder.parent / line.split(",", 1)[0].strip('"')) for line in lines)
        yield component(name, version, f"pkg:pypi/{name.lower()}@{version}", size)


def component(name: str, version: str, purl: str, size_bytes: int) -> dict[str, Any]:
    """Return one component of the bill of materials."""
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": purl,
        "bom-ref": purl,
        "properties": [{"name": SIZE_PROPERTY, "value": str(size_bytes)}],
    }


def bill_of_materials(root: Path, version: str) -> dict[str, Any]:
    """Return the bill of materials of a root."""
    found = [*debian_packages(root), *python_packages(root)]
    names = {one["name"]: one["bom-ref"] for one in found if "needs" in one}
    edges = [
        {
            "ref": one["bom-ref"],
            "dependsOn": sorted({names[need] for need in one.pop("needs") if need in names}),
        }
        for one in found
        if "needs" in one
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "sluice", "version": version}},
        "components": found,
        "dependencies": edges,
    }


if __name__ == "__main__":
    json.dump(bill_of_materials(Path(sys.argv[1]), sys.argv[2]), sys.stdout, indent=1)
    sys.stdout.write("\n")
