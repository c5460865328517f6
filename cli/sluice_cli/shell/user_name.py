"""The user who runs a command, as it is named in records of decisions."""

import getpass
import os


def user_name() -> str:
    """Return the name of the user, or the number where the system has no name for it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container that runs with any number
        return str(os.getuid())
