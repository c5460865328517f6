"""The version of the installed distribution."""

from importlib.metadata import version

from sluice_protocol.distribution import DISTRIBUTION


def read_version() -> str:
    """Return the installed version."""
    return version(DISTRIBUTION)
