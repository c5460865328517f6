"""Everything that a person reads is plain English; the checker itself is tested on planted text."""

import subprocess
from pathlib import Path

import pytest
from support.prose import Text, find_breaches, read_markdown, read_python

ROOT = Path(__file__).parents[2]
RULES = ROOT / "tests" / "support" / "prose.py"


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks, or would track, and that match a pattern."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns)
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in listed.stdout.splitlines())
    return [path for path in paths if path.exists() and path not in (RULES, Path(__file__))]


def breaches_of(path: Path) -> list[str]:
    read = read_markdown if path.suffix == ".md" else read_python
    return [str(breach) for text in read(path) for breach in find_breaches(text)]


@pytest.mark.parametrize("kind", ["*.md", "*.py"])
def test_pages_docstrings_comments_and_messages_are_plain_english(kind: str) -> None:
    found = [breach for path in tracked(kind) for breach in breaches_of(path)]
    assert found == [], f"{len(found)} passages to rewrite:\n" + "\n".join(found[:50])


def rules_broken(words: str) -> int:
    return len(list(find_breaches(Text(path=Path("page.md"), line=1, words=words))))


@pytest.mark.parametrize(
    "words",
    [
        "Gives the number of lanes.",
        "The register stands until it is rebuilt.",
        "Nobody waits for a batch once more.",
        "The blob is kept for ever.",
    ],
)
def test_a_planted_phrase_is_found(words: str) -> None:
    assert rules_broken(words) > 0


def test_plain_sentences_pass() -> None:
    assert rules_broken("Return the number of lanes. The store decides which bytes own a key.") == 0


def test_code_in_a_page_is_not_prose(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Run `sluice tells`:\n\n```\nit stands for ever\n```\n\n    nobody\n")
    assert breaches_of(page) == []


def test_a_breach_in_a_page_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```\ncode\n```\n\nThe lane stands.\n")
    assert breaches_of(page)[0].startswith(f"{page}:7: ")


def test_docstrings_comments_and_messages_of_a_module_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Gives a module."""\n'
        "# nobody reads this\n"
        "x = 1  # noqa: E501 - it stands there\n"
        "raise ValueError(\n"
        '    f"the store {x} is told"\n'
        '    " once more"\n'
        ")\n"
    )
    lines = sorted(int(breach.split(":")[1]) for breach in breaches_of(module))
    assert lines == [1, 2, 3, 5, 5]
