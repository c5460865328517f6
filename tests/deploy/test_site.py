"""The documentation as a site: built strictly, and without assets of other hosts."""

import re
from pathlib import Path

from support.deploy_tools import ROOT, run, tool

EXTERNAL = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\"'>]*"
)


def test_the_site_builds_strictly_without_external_assets(tmp_path: Path) -> None:
    run(tool("mkdocs"), "build", "--strict", "--quiet", "--site-dir", tmp_path, cwd=ROOT)
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = [one for one in EXTERNAL.finditer(page.read_text()) if "canonical" not in one[0]]
        assert found == [], page
    for style in tmp_path.rglob("*.css"):
        assert "url(http" not in style.read_text(), style
