"""Ensure that Java 17 or later, which Spark needs, is installed: `python -m deploy.java`.

Check `JAVA_HOME`, then `java` on the path. If neither is new enough and `apt-get` can be used,
install the headless JRE. Otherwise print in one line what to install, and exit with 1.
"""

import os
import shutil
import subprocess
import sys

from sluice_spark.jvm import JAVA_PACKAGE, JAVA_VERSION_MIN, describe_missing_java

APT_PACKAGES = (JAVA_PACKAGE, "openjdk-21-jre-headless", "default-jre-headless")
APT_TIMEOUT_S = 600


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


def install_java() -> None:
    """Install a JRE with `apt-get` if permitted."""
    prefix = _apt_prefix()
    if prefix is None:
        return
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
    for package in APT_PACKAGES:
        if run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package):
            return


def main() -> int:
    """Check the Java version, install Java if possible, check again; return the exit code."""
    if describe_missing_java() is None:
        return 0
    sys.stderr.write(f"Java {JAVA_VERSION_MIN} or later is missing, trying apt-get ...\n")
    install_java()
    missing = describe_missing_java()
    if missing is None:
        return 0
    sys.stderr.write(f"Spark cannot run: {missing}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
