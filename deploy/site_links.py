"""Hooks of MkDocs: pages of the root are pages of the site, and links that leave it become text."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside of `docs/` and their names in the site."""
_LINK: Final = re.compile(r"\[(?P<label>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside of `docs/`; their links into it are links of the site."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, place in PAGES.items():
            text = text.replace(f"]({other})", f"]({place})")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links that leave the site by their text."""
    del config
    folder = PurePosixPath(page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        target = normpath(str(folder / found["target"]))
        outside = PAGES.get(target.removeprefix("../"))
        if outside is not None and target.startswith("../"):
            return f"[{found['label']}]({relpath(outside, folder)}{found['anchor'] or ''})"
        if files.get_file_from_path(target) is not None:
            return found[0]
        if files.get_file_from_path(f"{target}/README.md") is not None:
            return f"[{found['label']}]({found['target'].rstrip('/')}/README.md)"
        return found["label"]

    return _LINK.sub(replaced, markdown)
