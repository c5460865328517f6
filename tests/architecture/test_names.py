"""One name, one meaning: no public class or function name is defined twice in the product."""

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


ONE_FOR_EACH = {
    "open_url": "kind of store",
    "metric_groups": "encoding of OTLP",
    "probe_endpoints": "protocol whose clients probe",
    "columns_of_lines": "protocol that sends lines",
    "json_map": "form in which a protocol sends objects",
    "value_texts": "form in which a protocol sends values",
    "main": "module that runs as a process",
}
"""Functions with one implementation for each of these, which callers use in the same way."""


def product_functions() -> dict[str, list[str]]:
    """Return the files that define each public function of a module, by its name.

    A command of `sluice` has the name of its word, which its function may have too.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.glob("*/**/*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] in (*OTHERS, "cli", "deploy") or place.parts[0].startswith("."):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not node.name.startswith("_") and not _is_overload(node):
                found[node.name].append(str(place))
    return found


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list)


def test_no_function_name_has_two_meanings() -> None:
    """A reader who searches for a function finds one definition, or the same for each kind."""
    found = product_functions()
    assert len(found) > 1000
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert {name: twice[name] for name in twice.keys() - ONE_FOR_EACH} == {}
    assert ONE_FOR_EACH.keys() <= twice.keys()
