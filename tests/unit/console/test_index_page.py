"""The page of the console, before any script runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
INDEX = ROOT / "console" / "sluice_console" / "static" / "index.html"


def test_the_import_map_precedes_every_module() -> None:
    """A preloaded module that is cached is resolved before the parser has read a later map.

    Names like `preact` are then unknown to it for the life of the page, which shows no error.
    """
    page = INDEX.read_text(encoding="utf-8")
    modules = [found.start() for found in re.finditer(r'rel="modulepreload"|type="module"', page)]
    assert modules
    assert page.index('type="importmap"') < min(modules)
