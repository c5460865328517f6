"""Hooks of MkDocs: the README is the first page, and links that leave the site become text."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[(?P<label>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the README as the first page; its links into `docs/` are links of the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links that leave the site by their text."""
    del config
    folder = PurePosixPath(page.file.src_uri).parent

    def replaced(found: re.Match[str]) -> str:
        target = normpath(str(folder / found["target"]))
        if files.get_file_from_path(target) is not None:
            return found[0]
        if files.get_file_from_path(f"{target}/README.md") is not None:
            return f"[{found['label']}]({found['target'].rstrip('/')}/README.md)"
        return found["label"]

    return _LINK.sub(replaced, markdown)
