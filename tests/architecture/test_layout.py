"""The checkout's own shape."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPONENTS = (
    "protocol store queue gateway reconciler spark gc query policies agent cli".split()  # noqa: SIM905
)


def test_component_folders_hold_no_init() -> None:
    """A stray queue/__init__.py would shadow the standard library for every run from the root."""
    stray = [name for name in COMPONENTS if (ROOT / name / "__init__.py").exists()]
    assert stray == []


def test_every_component_holds_its_package() -> None:
    """Each folder of the architecture holds one package of a unique name, typed."""
    for name in COMPONENTS:
        assert (ROOT / name / f"sluice_{name}" / "py.typed").exists(), name


def test_every_decision_is_listed() -> None:
    """The index of decisions links each page, so that a newcomer finds it."""
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    missing = [page.name for page in folder.glob("[0-9]*.md") if f"({page.name})" not in index]
    assert missing == []


def test_every_component_has_its_page() -> None:
    """A component's README says what it is for and how to run it."""
    assert [name for name in COMPONENTS if not (ROOT / name / "README.md").exists()] == []
