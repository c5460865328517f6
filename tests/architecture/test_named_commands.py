"""Every `sluice …` command that a message, a docstring or a page names exists."""

import importlib
import re
from pathlib import Path

from cyclopts import App

from sluice_cli.shell.commands import COMMANDS

ROOT = Path(__file__).parents[2]
COMPONENTS = ("agent", "cli", "console", "core", "gateway", "gc", "maintain", "policies", "query")
_NAMED = re.compile(r"`sluice ([a-z][a-z-]*)(?: ([a-z][a-z-]+))?")


def subcommands() -> dict[str, set[str]]:
    """Return the subcommands of each command; empty for one that has none."""
    found = {}
    for name, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        below = (
            [one for one in target if not one.startswith("-")] if isinstance(target, App) else []
        )
        found[name] = set(below)
    return found


def test_every_named_command_exists() -> None:
    known, wrong = subcommands(), []
    files = [
        path for one in (*COMPONENTS, "reconciler", "spark") for path in (ROOT / one).rglob("*.py")
    ]
    files += [*(ROOT / "docs").glob("*.toml"), *(ROOT / "docs").glob("*.md")]
    for path in files:
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for found in _NAMED.finditer(text):
            command, below = found.groups()
            if command not in known or (below and known[command] and below not in known[command]):
                wrong.append(f"{path.relative_to(ROOT)}: {found[0]}")
    assert len(files) > 300
    assert wrong == []
