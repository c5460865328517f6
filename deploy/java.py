"""Ensure that Java 17 or later, which Spark needs, is installed: `python -m deploy.java`.

Check `JAVA_HOME`, then `java` on the path. If neither is new enough and `apt-get` can be used,
install the headless JRE. Otherwise print in one line what to install, and exit with 1.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_VERSION_MIN = 17
APT_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
APT_TIMEOUT_S = 600


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


def _apt_prefix() -> list[str] | None:
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None:
        return None
    result = subprocess.run(  # noqa: S603 - a fixed command
        [sudo, "-n", "true"], capture_output=True, check=False, timeout=30
    )
    return [sudo, "-n"] if result.returncode == 0 else None


def install_java() -> bool:
    """Install a JRE with `apt-get` if permitted; return whether it was installed."""
    prefix = _apt_prefix()
    if prefix is None:
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}

    def run(*words: str) -> bool:
        done = subprocess.run(  # noqa: S603 - fixed commands
            [*prefix, *words],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=APT_TIMEOUT_S,
        )
        return done.returncode == 0

    run("apt-get", "update", "-qq")
    return any(
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
        for package in APT_PACKAGES
    )


def _enough(version: int | None) -> bool:
    return version is not None and version >= JAVA_VERSION_MIN


def main() -> int:
    """Check the Java version, install Java if possible, check again; return the exit code."""
    version = read_java_version()
    if _enough(version):
        return 0
    sys.stderr.write(f"Java {JAVA_VERSION_MIN} or later is missing, trying apt-get ...\n")
    if install_java() and _enough(read_java_version()):
        return 0
    found = "none" if version is None else str(version)
    sys.stderr.write(
        f"Spark needs Java {JAVA_VERSION_MIN} or later: install it (Debian: apt-get install "
        f"{APT_PACKAGES[0]}) or set JAVA_HOME, found={found}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
