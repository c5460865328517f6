"""The JVM process of a session that this driver started: its end, and its end with the driver."""

import atexit
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sluice_spark.errors import JvmEnded
from sluice_spark.jvm_watch import ORDERLY

_WATCH: Final = Path(__file__).parent / "jvm_watch.py"
_EXIT_WAIT_S: Final = 2.0
"""Time after a lost connection in which the end of the JVM's process becomes visible."""
_watched: dict[int, subprocess.Popen[bytes]] = {}


def jvm_process(session: Any) -> subprocess.Popen[bytes] | None:  # noqa: ANN401 - pyspark's session
    """Return the JVM's process, or None if `spark-submit` started the JVM and thus this driver."""
    gateway = session.sparkContext._gateway  # noqa: SLF001 - pyspark has no public name for it
    process = getattr(gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def watch_jvm(process: subprocess.Popen[bytes] | None) -> None:
    """Start the process that ends the JVM if this driver is killed.

    The watching process has a separate session, so that a signal to the driver's process group
    does not end it first.
    """
    if process is None or process.pid in _watched or not sys.platform.startswith("linux"):
        return
    # Its only descriptor from here is the pipe, whose other end closes when this driver dies.
    watching = subprocess.Popen(  # noqa: S603 - this Python and a script of this package
        [sys.executable, "-I", "-S", str(_WATCH), str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    _watched[process.pid] = watching
    atexit.register(_end_orderly, watching)


def _end_orderly(watching: subprocess.Popen[bytes]) -> None:
    if watching.stdin is not None:
        with suppress(OSError):
            watching.stdin.write(ORDERLY)
            watching.stdin.flush()


def check_jvm(process: subprocess.Popen[bytes] | None, error: Exception | None = None) -> None:
    """Raise an error if the JVM has ended.

    Args:
        process: The JVM's process.
        error: The error that a call into the JVM raised, if one was made.

    Raises:
        JvmEnded: It has.
    """
    if process is None:
        return
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_WAIT_S if error is not None else 0)
    if process.returncode is not None:
        raise JvmEnded(
            "the JVM of Spark has ended: it was killed or crashed; start the job again,"
            f" exit_code=`{process.returncode}`"
        ) from error


def stop_session(session: Any) -> None:  # noqa: ANN401 - pyspark's session
    """Stop a session, even if its JVM has ended."""
    process = jvm_process(session)
    if process is not None and process.poll() is not None:
        return
    try:
        session.stop()
    except Exception as error:
        with suppress(JvmEnded):
            check_jvm(process, error)
            raise


def quiet_py4j() -> None:
    """Drop the tracebacks that py4j prints for errors which the job raises or handles."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    # py4j logs a broken connection through the root logger.
    return not str(record.msg).startswith("Exception while sending command")
