"""The version of Java that Spark would run."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from sluice_protocol.errors import BadUsage

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
    """Run the `java` that Spark would run, and return its feature release or None.

    Raises:
        BadUsage: It does not end.
    """
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
    """Check that the Java that Spark would run is new enough.

    Raises:
        BadUsage: There is none, or it is too old.
    """
    missing = describe_missing_java()
    if missing is not None:
        raise BadUsage(missing)
