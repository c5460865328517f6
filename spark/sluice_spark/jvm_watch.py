"""End a JVM whose driver has died: a script that runs as a separate process.

Spark's JVM notices the end of its driver by the end of its standard input. It then runs its
shutdown hooks, which can wait for tasks and for a query that will never return. This process waits
for the end of the driver in the same way, gives the JVM a few seconds and kills it.

It imports only the standard library, so that it starts in milliseconds and stays small.
"""

import os
import select
import signal
import sys

KILLED_GRACE_S = 3.0
"""Time that the JVM has to end after its driver was killed."""
ORDERLY_GRACE_S = 60.0
"""Time that the JVM has to end after its driver has ended in an orderly way."""
ORDERLY = b"."
"""The byte that the driver writes before it ends in an orderly way."""


def watch(jvm: int) -> None:
    """Wait until the JVM ends, or until the driver ends and the grace period is over.

    `jvm` is a descriptor of the JVM's process, which stays valid if its number is used again.
    """
    driver = sys.stdin.fileno()
    grace_s = KILLED_GRACE_S
    while True:
        ready, _, _ = select.select([driver, jvm], [], [])
        if jvm in ready:
            return
        if not os.read(driver, 1):
            break
        grace_s = ORDERLY_GRACE_S
    ended, _, _ = select.select([jvm], [], [], grace_s)
    if not ended:
        signal.pidfd_send_signal(jvm, signal.SIGKILL)


def main() -> None:
    """Watch the JVM with the process id that the first argument contains."""
    try:
        jvm = os.pidfd_open(int(sys.argv[1]))
    except ProcessLookupError:
        return
    watch(jvm)


if __name__ == "__main__":
    main()
