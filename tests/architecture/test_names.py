"""One name, one meaning: no public class name is defined twice in the product."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = (".venv", "tests", "benchmarks", "node_modules")


def product_classes() -> dict[str, list[str]]:
    """Return the files that define each public class, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.glob("*/**/*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] in OTHERS or place.parts[0].startswith("."):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(place))
    return found


def test_no_class_name_has_two_meanings() -> None:
    """A reader who searches for a class finds one definition."""
    found = product_classes()
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
