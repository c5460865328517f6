"""The documentation as a site: built strictly, with its diagrams, without assets of other hosts."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from deploy.state_machines import MACHINES
from playwright.sync_api import expect, sync_playwright
from support.console_pages import CHROMIUM, FLAGS, watch
from support.deploy_tools import ROOT, run, tool

EXTERNAL = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(https?:)?//[^\"'>]*"
)


FROM_OUTSIDE = {"index.md", "changelog.md"}
"""Pages that `deploy/site_hooks.py` adds."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder; yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, which is built strictly: a warning fails."""
    folder = tmp_path_factory.mktemp("site")
    command = (tool("mkdocs"), "build", "--strict", "--quiet", "--site-dir", folder)
    # Without the variable the theme announces its successor.
    assert run(*command, cwd=ROOT, NO_MKDOCS_2_WARNING="1") == ""
    return folder


def test_the_site_has_no_external_assets(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = [one for one in EXTERNAL.finditer(page.read_text()) if "canonical" not in one[0]]
        assert found == [], page
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(), style


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: run `make test-browser`")
def test_a_reader_sees_each_state_machine_as_a_picture_without_a_network(site: Path) -> None:
    """The theme replaces the text of a diagram after Mermaid has drawn it, else it remains."""
    with served(site) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        page = browser.new_page()
        errors, asked = watch(page), []
        page.on("request", lambda request: asked.append(request.url))
        for machine in MACHINES:
            page.goto(f"{url}/{machine.page.removesuffix('.md')}/")
            text = (ROOT / "docs" / machine.page).read_text()
            drawn = page.locator("div.mermaid")
            expect(drawn).to_have_count(text.count("```mermaid"), timeout=30_000)
            for one in drawn.all():
                box = one.bounding_box()
                assert box is not None
                assert min(box["width"], box["height"]) > 200
            assert "stateDiagram" not in page.locator("article").inner_text()
        page.goto(f"{url}/glossary/")
        assert page.locator("script[src*=mermaid]").count() == 0
        browser.close()
    assert errors == []
    assert [one for one in asked if not one.startswith(url)] == []
