"""The parts of a release that do not build anything."""

import hashlib
from pathlib import Path

import pytest
from deploy.release import check_tag, checksum_lines, notes_of

from sluice_protocol.errors import BadUsage

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n- new\n\n## [1.0.0] - 2026-01-01\n- old\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes_of(CHANGELOG, "1.0.0") == "- old\n"
    assert notes_of(CHANGELOG, "Unreleased") == "### Added\n- new\n"


@pytest.mark.parametrize("version", ["2.0.0", "1x0.0"])
def test_a_missing_section_is_named(version: str) -> None:
    with pytest.raises(BadUsage, match=version):
        notes_of(CHANGELOG, version)


def test_an_empty_section_is_missing() -> None:
    with pytest.raises(BadUsage):
        notes_of("## [1.0.0]\n\n## [0.9.0]\n- x\n", "1.0.0")


def test_the_tag_must_be_that_of_the_version() -> None:
    assert check_tag(["v1.0.0", "nightly"], "1.0.0")
    assert not check_tag(["nightly"], "1.0.0")
    with pytest.raises(BadUsage, match=r"v1\.0\.1"):
        check_tag(["v1.0.1"], "1.0.0")


def test_checksums_have_the_form_of_sha256sum(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_bytes(name.encode())
    lines = checksum_lines(tmp_path.iterdir()).splitlines()
    assert lines[0] == f"{hashlib.sha256(b'a').hexdigest()}  a"
    assert [line[-1] for line in lines] == ["a", "b"]
