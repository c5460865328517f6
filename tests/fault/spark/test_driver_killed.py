"""A process that ignores the end of its standard input ends soon after its killed driver."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DRIVER = """
import subprocess, sys, time
from sluice_spark.jvm import _watched, watch_jvm
stubborn = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)
watch_jvm(stubborn)
print(stubborn.pid, flush=True)
if len(sys.argv) > 1:
    stubborn.terminate()
    stubborn.wait()
    assert _watched[stubborn.pid].wait(10) == 0
else:
    time.sleep(600)
"""


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_jvm_ends_seconds_after_its_driver_is_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    jvm = int(driver.stdout.readline())
    try:
        driver.kill()
        driver.communicate()
        begun = time.monotonic()
        while not ended(jvm) and time.monotonic() < begun + 30:
            time.sleep(0.05)
        assert ended(jvm)
        assert time.monotonic() - begun < 10
    finally:
        if not ended(jvm):
            os.kill(jvm, signal.SIGKILL)


def test_watching_process_ends_with_the_jvm() -> None:
    """It would otherwise wait for the driver, or kill a process that has the number by then."""
    command = [sys.executable, "-c", DRIVER, "orderly"]
    subprocess.run(command, timeout=60, check=True)
