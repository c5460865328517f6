"""The documentation as a site: built strictly, and without assets of other hosts."""

import re
from pathlib import Path

import yaml
from support.deploy_tools import ROOT, run, tool

EXTERNAL = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\"'>]*"
)


FROM_OUTSIDE = {"index.md", "changelog.md"}
"""Pages that `deploy/site_links.py` adds."""


def named_pages(nav: object) -> set[str]:
    match nav:
        case str():
            return {nav}
        case list():
            return set().union(*map(named_pages, nav))
        case dict():
            return set().union(*map(named_pages, nav.values()))
    raise AssertionError(nav)


def test_the_navigation_names_each_page() -> None:
    """A page that only the search finds is not read. Decision records have a separate list."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    docs = ROOT / "docs"
    pages = {str(one.relative_to(docs)) for one in docs.rglob("*.md")}
    records = {one for one in pages if one.startswith("adr/")} - {"adr/README.md"}
    assert named_pages(nav) == pages - records | FROM_OUTSIDE


def test_the_site_builds_strictly_without_external_assets(tmp_path: Path) -> None:
    command = (tool("mkdocs"), "build", "--strict", "--quiet", "--site-dir", tmp_path)
    # Without the variable the theme announces its successor.
    assert run(*command, cwd=ROOT, NO_MKDOCS_2_WARNING="1") == ""
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = [one for one in EXTERNAL.finditer(page.read_text()) if "canonical" not in one[0]]
        assert found == [], page
    for style in tmp_path.rglob("*.css"):
        assert "url(http" not in style.read_text(), style
