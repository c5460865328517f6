"""The limit of open files of a process. Each connection is one.

A shell usually starts programs with a soft limit of 1,024, which is below the default limits of
connections, and with a much higher hard limit. The soft limit protects programs that call
`select(2)`, which fails from the 1,025th file on. The servers here do not call it. Source:
getrlimit(2), select(2).
"""

import resource
from typing import Final

OPEN_FILES_WANTED: Final = 65_536
"""The limit in the units of `deploy/systemd`."""


def raise_open_files_limit(wanted: int = OPEN_FILES_WANTED) -> int:
    """Raise the soft limit of open files of this process, if the hard limit permits more.

    Processes that are started later inherit it. A limit that is higher already is not changed.

    Returns:
        The soft limit now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
