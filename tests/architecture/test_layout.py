"""The shape of the checkout: packages, their pages, and the lists that follow from them."""

import os
import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = PROJECT["tool"]
PACKAGES = [Path(path) for path in TOOL["hatch"]["build"]["targets"]["wheel"]["packages"]]
FOLDERS = list(dict.fromkeys(str(path.parent) for path in PACKAGES))
PAGES = [
    ROOT / (path if str(path.parent) == "core" else path.parent) / "README.md" for path in PACKAGES
]


def test_the_package_list_names_every_package() -> None:
    """A package folder that is missing from the list would be missing from the wheel."""
    found = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/*sluice*/__init__.py")}
    assert found == set(PACKAGES)


def test_other_lists_follow_from_the_package_list() -> None:
    """The editable install, mypy and import-linter read lists derived from the package list."""
    assert TOOL["hatch"]["build"]["dev-mode-dirs"] == FOLDERS
    assert TOOL["mypy"]["files"] == [*FOLDERS, "deploy", "benchmarks"]
    assert TOOL["mypy"]["mypy_path"] == FOLDERS
    assert TOOL["ruff"]["src"] == FOLDERS
    assert set(TOOL["importlinter"]["root_packages"]) == {path.name for path in PACKAGES}


def test_no_task_outlives_the_one_that_failed() -> None:
    """`asyncio.gather` leaves the others running after a failure, and closes what they use.

    `run_together` of the store ends them; a `gather` that returns exceptions waits for all.
    """
    calls = re.compile(r"asyncio\.gather\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for call in calls.findall(path.read_text()):
                assert "return_exceptions=True" in call, f"{path}: {call}"


def test_the_layers_name_every_package() -> None:
    """A package outside the layers could import anything."""
    contract = next(one for one in TOOL["importlinter"]["contracts"] if one["type"] == "layers")
    layered = {name.strip() for line in contract["layers"] for name in line.split("|")}
    assert layered == {path.name for path in PACKAGES}


def test_every_package_is_typed() -> None:
    """mypy and users of the packages see their types."""
    assert [path for path in PACKAGES if not (ROOT / path / "py.typed").exists()] == []


def test_component_folders_are_not_packages() -> None:
    """A component folder with an `__init__.py` would shadow packages of the same name."""
    assert [name for name in FOLDERS if (ROOT / name / "__init__.py").exists()] == []


def test_every_component_has_a_readme() -> None:
    """A component's README explains its purpose and how to run it."""
    assert [str(page) for page in PAGES if not page.exists()] == []


def test_readmes_name_no_module_that_does_not_exist() -> None:
    """Modules are renamed and moved; a README that names an old one misleads."""
    known = {path.name for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*.py")}
    stale = []
    for page in PAGES:
        named = re.findall(r"`(?:\w+/)*(\w+\.py)`", page.read_text())
        stale += [f"{page}: {name}" for name in sorted({*named} - known)]
    assert stale == []


def test_readmes_name_every_module() -> None:
    """A reader finds each module, or its folder as `folder/`, in the page of its component."""
    unnamed = []
    for path, page in zip(PACKAGES, PAGES, strict=True):
        if path.name == "sluice_cli":  # most of its modules have the name of their command
            continue
        code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.DOTALL))
        named = {*re.findall(r"\w+/?", code)}
        for module in (ROOT / path).rglob("*.py"):
            folders = {f"{part}/" for part in module.relative_to(ROOT / path).parts[:-1]}
            if not module.name.startswith("__") and not {module.stem, *folders} & named:
                unnamed.append(f"{page.relative_to(ROOT)}: {module.name}")
    assert sorted(unnamed) == []


def test_every_decision_record_is_listed() -> None:
    """The index of decision records links every record."""
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    missing = [page.name for page in folder.glob("[0-9]*.md") if f"({page.name})" not in index]
    assert missing == []


def test_each_locked_package_supports_the_oldest_python_of_the_product() -> None:
    """`python3` of Debian 12 is 3.11.2, so a package that needs 3.11.5 breaks `make setup`."""
    oldest = f"{PROJECT['project']['requires-python'].removeprefix('>=')}.0"
    too_new = []
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        found = re.match(r"([\w.-]+)==", line)
        if found is None:
            continue
        try:
            needed = metadata(found[1]).get("Requires-Python") or ""
        except PackageNotFoundError:
            continue  # for another platform or Python
        if not SpecifierSet(needed).contains(oldest):
            too_new.append(f"{line}: needs Python {needed}")
    assert too_new == []


def test_no_file_has_the_marks_of_an_unfinished_merge() -> None:
    marks = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    folders = {".git", ".venv", "node_modules", "site", "dist"}
    for folder, below, names in os.walk(ROOT):
        below[:] = [one for one in below if one not in folders]
        for name in names:
            path = Path(folder, name)
            if path.suffix in {".py", ".md", ".toml", ".yaml", ".json", ".js", ".css", ".sh"}:
                assert marks.search(path.read_bytes()) is None, path
