"""Where a service listens, and how many files it may open."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sluice_protocol.errors import BadUsage
from sluice_web.addresses import parse_listen
from sluice_web.listening import TlsFiles, server_tls
from sluice_web.process_limits import OPEN_FILES_WANTED, port_connections_max


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:8383", ("::1", 8383)),
        ("a.b:65535", ("a.b", 65535)),
    ],
)
def test_parse_listen_returns_host_and_port(listen: str, found: tuple[str, int]) -> None:
    """An IPv6 address is written in brackets."""
    assert parse_listen(listen) == found


@pytest.mark.parametrize(
    "listen", ["8383", ":8383", "host:", "host:x", "host:65536", "[]:80", "host:٣", ""]
)
def test_parse_listen_refuses_other_forms(listen: str) -> None:
    with pytest.raises(BadUsage, match="HOST:PORT"):
        parse_listen(listen)


def test_tls_is_off_without_files_and_refuses_unreadable_ones(tmp_path: Path) -> None:
    assert server_tls(None) is None
    with pytest.raises(BadUsage, match="cannot use TLS files"):
        server_tls(TlsFiles(certificate=tmp_path / "none.pem", key=tmp_path / "none.key"))


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
