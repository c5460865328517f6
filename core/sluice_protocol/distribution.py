"""The name of the distribution on the package index, and how to install an extra of it."""

from typing import Final

DISTRIBUTION: Final = "sluice-gateway"
"""`name` in `pyproject.toml`. The command and the import packages have shorter names."""


def read_version() -> str:
    """Return the installed version."""
    from importlib.metadata import version  # noqa: PLC0415 - few commands need it

    return version(DISTRIBUTION)


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def describe_missing_package(extra: str, package: str | None) -> str:
    """Return one line about a package that is not installed."""
    return f"missing package: run `{install_command(extra)}`, package=`{package}`"
