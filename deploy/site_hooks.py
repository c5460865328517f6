"""Hooks of MkDocs for what the site shows differently from the files.

Pages of the root are pages of the site, links that leave it become text, and Mermaid diagrams are
drawn in the browser, by a copy of Mermaid that is part of the site. Without that copy the theme
would load one from another host.
"""

import os
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.superfences import fence_code_format

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside of `docs/` and their names in the site."""
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
MERMAID: Final = _CACHE / "sluice" / "deploy-tools" / "mermaid.min.js"
"""Where `deploy/tools.sh` unpacks it."""
_SCRIPT: Final = "assets/mermaid.min.js"
_DIAGRAM: Final = "mermaid"
"""The language of a code block that is a diagram, and the class by which the theme finds it."""
_LINK: Final = re.compile(r"\[(?P<label>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Mark code blocks with diagrams, so that the theme draws them."""
    if not MERMAID.exists():
        raise ConfigurationError(f"missing file: run `deploy/tools.sh`, path={MERMAID}")
    fence = {"name": _DIAGRAM, "class": _DIAGRAM, "format": fence_code_format}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add Mermaid, and the pages outside of `docs/`; their links into it are links of the site."""
    files.append(File.generated(config, _SCRIPT, abs_src_path=str(MERMAID)))
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


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load Mermaid on the pages that have a diagram."""
    del config
    script = files.get_file_from_path(_SCRIPT)
    if script is None or f'<pre class="{_DIAGRAM}">' not in html:
        return html
    return f'{html}\n<script src="{script.url_relative_to(page.file)}"></script>'
