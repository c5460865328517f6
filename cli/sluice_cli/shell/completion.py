"""`sluice completion`: print the script that completes commands and options in a shell."""

import importlib
import sys
from typing import Final, Literal

from cyclopts import App

from sluice_cli.shell.commands import COMMANDS, SUMMARY

Shell = Literal["bash", "zsh", "fish"]

_ZSH_END: Final = """
# In a folder of $fpath this file is the function _sluice; otherwise it is read by `source`.
if [[ $funcstack[1] == _sluice ]]; then
  _cyclopts_sluice "$@"
else
  compdef _cyclopts_sluice sluice
fi
"""
"""The library defines a function and expects a file of its name, which no other program has."""


def completion(shell: Shell, /) -> None:
    """Print the completion script of a shell.

    Write it where the shell looks for it, and start a new shell. Print it again after an upgrade.

    bash: `~/.local/share/bash-completion/completions/sluice`

    zsh: `_sluice` in a folder of `$fpath`

    fish: `~/.config/fish/completions/sluice.fish`
    """
    app = App(name="sluice", help=SUMMARY)
    for name, (place, summary) in COMMANDS.items():
        if _is_installed(place):
            app.command(place, name=name, help=summary)
    sys.stdout.write(app.generate_completion(shell=shell) + (_ZSH_END if shell == "zsh" else ""))


def _is_installed(place: str) -> bool:
    """Return True if the packages of a command are installed; each extra adds some commands."""
    try:
        importlib.import_module(place.partition(":")[0])
    except ImportError:
        return False
    return True
