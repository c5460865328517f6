"""Files, pages and sections that the documentation and docstrings name exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = "docs|tests|core|gateway|agent|reconciler|spark|gc|query|policies|cli|deploy|benchmarks"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]+\.(?:py|md|toml|sh))`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
SECTION = re.compile(r"`(docs/[\w/-]+\.md)`, \**([A-Z][\w -]*?)\**(?=[;:.,)]|\s*\n\n)")


def tracked(pattern: str) -> list[Path]:
    command = ("git", "ls-files", pattern)
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_named_files_exist() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in (*tracked("*.md"), *tracked("*.py"))
        for name in PATH.findall(page.read_text())
        if not (ROOT / name).exists()
    ]
    assert missing == []


def test_links_between_pages_lead_somewhere() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in tracked("*.md")
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert missing == []


def test_sections_that_docstrings_name_exist() -> None:
    missing, found = [], 0
    for module in tracked("*.py"):
        for page, section in SECTION.findall(module.read_text()):
            found += 1
            headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
            if section not in headings:
                missing.append(f"{module.relative_to(ROOT)}: {page}, {section}")
    assert missing == []
    assert found > 10, "the pattern finds no references"
