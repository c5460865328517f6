"""The maps for readers of the code name what exists: the tour, the packages, and what to change."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table of a section, without its head."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def functions_of(path: Path) -> set[str]:
    """Return the functions and methods of a module, with the names of their classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


TOUR = rows(ARCHITECTURE, "A tour: one batch through the code")


@pytest.mark.parametrize(("_step", "file", "functions", "test"), TOUR)
def test_each_step_of_the_tour_exists(_step: str, file: str, functions: str, test: str) -> None:
    [path], [proof] = quoted(file), quoted(test)
    assert {*quoted(functions)} <= functions_of(ROOT / path)
    assert (ROOT / proof).is_file()


def test_the_files_to_open_first_exist() -> None:
    missing = []
    for packages, _, _, files in rows(ARCHITECTURE, "Packages"):
        folders = [ROOT / package for package in quoted(packages)]
        missing += [
            f"{packages}: {file}"
            for file in quoted(files)
            if not any((folder / file).is_file() for folder in folders)
        ]
    assert missing == []


def test_each_package_is_on_the_map() -> None:
    named = {name for row in rows(ARCHITECTURE, "Packages") for name in quoted(row[0])}
    packages = {str(one.parent.relative_to(ROOT)) for one in ROOT.glob("*/*sluice*/__init__.py")}
    assert named == packages


def test_what_to_change_exists() -> None:
    missing = [
        f"{change}: {name}"
        for change, first, then in rows(CONTRIBUTING, "To change X, change these")
        for name in quoted(first) + quoted(then)
        if "/" in name and not (ROOT / name).exists()
    ]
    assert missing == []


STRANGERS_QUESTIONS = {
    "the JSON of the response to an accepted upload": "gateway/sluice_gateway/uploads/acceptor.py",
    "when other bytes become a conflict": "core/sluice_protocol/acceptance.py",
    "how long a reconciler waits for a gateway's journal": "core/sluice_protocol/journals.py",
    "a field of a record": "core/sluice_protocol/fields.py",
    "a kind of record": "core/sluice_protocol/fields.py",
    "where an ingest commits positions with data": "spark/sluice_spark/ingest/microbatch.py",
    "what proves that a blob may be deleted": "core/sluice_protocol/blob_deletion.py",
    "a statement of the bucket policy": "policies/sluice_policies/bucket_policy.py",
    "an option of `sluice query`": "cli/sluice_cli/query.py",
    "what the agent does when its spool is full": "agent/sluice_agent/spool/spool.py",
    "the meaning of a store's response to a PUT": "core/sluice_protocol/exchange_verdicts.py",
}
"""Questions of a stranger, and the file that the map must lead to."""


@pytest.mark.parametrize(("question", "answer"), STRANGERS_QUESTIONS.items())
def test_the_map_answers_a_stranger(question: str, answer: str) -> None:
    table = {row[0]: quoted(row[1]) for row in rows(CONTRIBUTING, "To change X, change these")}
    assert table[question][0] == answer
