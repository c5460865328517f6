"""Wheel and sdist of a release: the same bytes from the same commit, and complete."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from deploy.release import build, checksum_lines, export_commit

pytestmark = [pytest.mark.package, pytest.mark.timeout(900)]

EPOCH = "1767225600"
PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
PACKAGES = [
    Path(one) for one in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_commit(tmp_path_factory.mktemp("commit"))


@pytest.fixture(scope="module")
def files(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(source, tmp_path_factory.mktemp("first"), EPOCH)


def test_two_builds_of_a_commit_have_equal_bytes(
    source: Path, files: list[Path], tmp_path: Path
) -> None:
    assert [one.suffix for one in files] == [".whl", ".gz"]
    assert checksum_lines(build(source, tmp_path, EPOCH)) == checksum_lines(files)


def test_the_sdist_contains_what_the_wheel_needs(files: list[Path], tmp_path: Path) -> None:
    wheel, sdist = files
    uv = Path(sys.executable).with_name("uv")
    words = (uv, "build", "--quiet", "--wheel", "--out-dir", tmp_path, sdist)
    subprocess.run(words, cwd=tmp_path, check=True, timeout=600)
    (again,) = tmp_path.glob("*.whl")
    assert names_of(again) == names_of(wheel)
    assert any(name.startswith("sluice_console/static/") for name in names_of(wheel))


def test_the_wheel_contains_no_fake_and_no_test(files: list[Path]) -> None:
    """The store of the wheel has two adapters, and nothing outside the listed packages is in it."""
    names = names_of(files[0])
    store = {Path(name).parts[1] for name in names if name.startswith("sluice_store/")}
    assert {one for one in store if "." not in one} == {"local", "s3"}
    roots = {Path(name).parts[0] for name in names}
    assert roots - {one for one in roots if one.endswith(".dist-info")} == {
        path.name for path in PACKAGES
    }


def names_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())
