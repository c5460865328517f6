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
