"""Each stored record has one version, and a record of another version is refused as such."""

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluice_protocol.errors import UnsupportedRecord
from sluice_protocol.manifests import decode_record

ROOT = Path(__file__).parents[2]
TOOL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
PACKAGES = [ROOT / path for path in TOOL["hatch"]["build"]["targets"]["wheel"]["packages"]]
RECORD = re.compile(
    r"^class (\w+)\((?:(?!^class ).)*?^    schema: ([^\n]+)$", re.MULTILINE | re.DOTALL
)
VERSIONED = re.compile(r'Literal\["([a-z_.]+)\.v(\d+)"\] = "\1\.v\2"')


def records() -> Iterator[tuple[str, str, str]]:
    """Yield module, class and declared schema of each record with a schema."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
            for name, declared in RECORD.findall(path.read_text()):
                yield module, name, declared


RECORDS = list(records())


def test_every_schema_has_one_version() -> None:
    """Another declaration, for example plain text, would read each version as this one."""
    assert len(RECORDS) > 30
    versions: dict[str, set[str]] = {}
    for module, name, declared in RECORDS:
        found = VERSIONED.fullmatch(declared)
        assert found is not None, f"{module}.{name}: {declared}"
        versions.setdefault(found[1], set()).add(found[2])
    assert {name: one for name, one in versions.items() if len(one) > 1} == {}


@pytest.mark.parametrize("step", [-1, 1], ids=["lower", "higher"])
@pytest.mark.parametrize(
    ("module", "name", "declared"), RECORDS, ids=[f"{module}.{name}" for module, name, _ in RECORDS]
)
def test_a_record_of_another_version_is_refused(
    module: str, name: str, declared: str, step: int
) -> None:
    stated = VERSIONED.fullmatch(declared)
    assert stated is not None
    kind = getattr(importlib.import_module(module), name)
    body = msgspec.json.encode({"schema": f"{stated[1]}.v{int(stated[2]) + step}", "later": 1})
    with pytest.raises(UnsupportedRecord) as refused:
        decode_record("k", body, kind)
    found = refused.value
    assert (found.what, found.known, found.found - found.known) == (stated[1], int(stated[2]), step)
