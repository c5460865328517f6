"""Stop a job between two of its steps, where nothing is half done."""

from collections.abc import Callable

from sluice_protocol.errors import SluiceError

StopCheck = Callable[[], None]
"""Raises `JobStopped` if the job must stop. A job calls it before each step that it may omit."""


class JobStopped(SluiceError):
    """The job was stopped between two steps; run it again to continue."""


def never_stop() -> None:
    """Let the job continue."""
