"""The version of Java that Spark runs, and the JVM that this driver started and ends."""

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sluice_protocol.errors import BadUsage
from sluice_spark.errors import JvmEnded
from sluice_spark.jvm_watch import ORDERLY

JAVA_VERSION_MIN: Final = 17
JAVA_PACKAGE: Final = "openjdk-17-jre-headless"
"""The package of Debian that contains it."""
STARTED_S_MAX: Final = 60
"""Time for `java -version`, which takes a tenth of a second on a machine without load."""


def parse_java_version(text: str) -> int | None:
    """Return the feature release in the output of `java -version`, or None.

    `1.8.0_412` counts as 8, `17.0.15` as 17.
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def read_java_version() -> int | None:
    """Run the `java` that Spark would run, and return its feature release or None."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    try:
        result = subprocess.run(  # noqa: S603 - the same path that Spark runs
            [java, "-version"], capture_output=True, text=True, timeout=STARTED_S_MAX, check=False
        )
    except OSError:  # it is not a program, or this user may not run it
        return None
    except subprocess.TimeoutExpired:
        raise BadUsage(
            f"Java does not start: end what uses the processor or the disk, or set JAVA_HOME,"
            f" java=`{java}`, waited_s={STARTED_S_MAX}"
        ) from None
    return parse_java_version(result.stderr + result.stdout)


def describe_missing_java() -> str | None:
    """Return the problem with Java and its remedy, or None if Spark can run here."""
    try:
        found = read_java_version()
    except BadUsage as error:
        return str(error)
    if found is not None and found >= JAVA_VERSION_MIN:
        return None
    problem, version = ("no Java", "") if found is None else ("Java is too old", f", found={found}")
    return (
        f"{problem}: install Java {JAVA_VERSION_MIN} or later (Debian: apt-get install"
        f" {JAVA_PACKAGE}) or set JAVA_HOME{version}"
    )


def check_java() -> None:
    """Raise `BadUsage` if the Java that Spark would run is missing or too old."""
    missing = describe_missing_java()
    if missing is not None:
        raise BadUsage(missing)


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
    """Raise `JvmEnded` if the JVM has ended.

    `error` is what a call into the JVM raised, if one was made.
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
