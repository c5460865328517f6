"""The soft limit of open files is raised, and the hard limit is not exceeded."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sluice_web.process_limits import OPEN_FILES_WANTED, port_connections_max

_CHECK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from sluice_web.process_limits import raise_open_files_limit
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


@pytest.mark.parametrize(
    ("soft", "wanted", "most"),
    [(256, 4096, 32), (1024, 4096, 128), (65_536, 4096, 4096), (65_536, 10, 10), (4, 4096, 1)],
)
def test_the_ports_of_a_process_use_half_of_its_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, most: int
) -> None:
    """Connections that idle on one port lock out neither other ports nor the store."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert port_connections_max(wanted) == most


@pytest.mark.parametrize("program", ["gateway/sluice_gateway", "agent/sluice_agent"])
def test_every_limit_of_connections_is_bound_to_the_open_files(program: str) -> None:
    """A limit of a server that is passed on as it was set is not."""
    for path in Path(program).rglob("*.py"):
        for line in path.read_text().splitlines():
            passed = re.search(
                r"connections_max=(?:self\._)?settings\.(\w+\.)?connections_max", line
            )
            assert passed is None, f"{path}: {line}"
