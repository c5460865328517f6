from pathlib import Path

import pytest

from sluice_protocol.errors import BadUsage
from sluice_web.addresses import parse_listen
from sluice_web.listening import TlsFiles, server_tls


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
    """The error states the form."""
    with pytest.raises(BadUsage, match="HOST:PORT"):
        parse_listen(listen)


def test_tls_is_off_without_files_and_refuses_unreadable_ones(tmp_path: Path) -> None:
    assert server_tls(None) is None
    with pytest.raises(BadUsage, match="cannot use TLS files"):
        server_tls(TlsFiles(certificate=tmp_path / "none.pem", key=tmp_path / "none.key"))
