"""The soft limit of open files is raised, and the hard limit is not exceeded."""

import subprocess
import sys
from pathlib import Path

import pytest

from sluice_web.open_files import OPEN_FILES_WANTED

_CHECK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from sluice_web.open_files import raise_open_files_limit
print(raise_open_files_limit({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised"),
    [(256, 1024, 512, 512), (256, 1024, 4096, 1024), (512, 1024, 256, 512)],
)
def test_the_soft_limit_is_raised(soft: int, hard: int, wanted: int, raised: int) -> None:
    code = _CHECK.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(raised), str(raised), str(hard)]


@pytest.mark.parametrize("service", ["agent", "gateway"])
def test_the_limit_is_that_of_the_units(service: str) -> None:
    unit = Path(f"deploy/systemd/sluice-{service}.service").read_text()
    assert f"LimitNOFILE={OPEN_FILES_WANTED}\n" in unit
