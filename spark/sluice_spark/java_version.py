"""The version of Java that Spark would run."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

JAVA_VERSION_MIN: Final = 17
JAVA_PACKAGE: Final = "openjdk-17-jre-headless"
"""The package of Debian that contains it."""


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
    result = subprocess.run(  # noqa: S603 - the same path that Spark runs
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    return parse_java_version(result.stderr + result.stdout)
