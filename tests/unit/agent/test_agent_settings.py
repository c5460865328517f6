"""The agent's settings and key file."""

import errno
import os
import tomllib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from sluice_agent.sending.signing_key import make_key, principal_entry, read_key
from sluice_agent.settings import (
    BATCH_BYTES_MAX,
    BLOCK_COST_BYTES_MAX,
    AgentSettings,
    BatchLimits,
    BlockLimits,
)
from sluice_protocol.errors import BadUsage


def test_keys_are_exchanged_with_the_library(tmp_path: Path) -> None:
    """The library reads what the agent writes, and the agent reads every form of the library."""
    made = make_key(tmp_path / "made.pem")
    pem = (tmp_path / "made.pem").read_bytes()
    private = Ed25519PrivateKey.from_private_bytes(bytes(made.key))
    assert pem == private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for number, text in enumerate((pem, b"a comment\n" + pem, pem.replace(b"\n", b"\r\n"))):
        path = tmp_path / f"{number}.pem"
        path.touch(mode=0o600)
        path.write_bytes(text)
        assert read_key(path).public_base64 == made.public_base64


def test_a_key_that_cannot_be_written_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadUsage, match="No space left"):
        make_key(tmp_path / "k.pem")
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_created_once_and_is_private(tmp_path: Path) -> None:
    """Mode 0600, never overwritten, rejected when others may read it; its entry is TOML."""
    path = tmp_path / "deep" / "key.pem"
    made = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).public_base64 == made.public_base64
    with pytest.raises(BadUsage, match="exists"):
        make_key(path)
    entry = tomllib.loads(principal_entry('odd "name"\\', "host-1", made))["principals"][0]
    assert entry["name"] == 'odd "name"\\'
    assert entry["keys"] == [{"id": made.key_id, "ed25519": made.public_base64}]
    path.chmod(0o644)
    with pytest.raises(BadUsage, match="chmod"):
        read_key(path)
    with pytest.raises(BadUsage, match="agent init"):
        read_key(tmp_path / "none")
    other = tmp_path / "other"
    other.touch(mode=0o600)
    with pytest.raises(BadUsage, match="not a private key"):
        read_key(other)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"gateway": ""}, "gateways"), ({"gateway": "ftp://x"}, "gateways"),
        ({"gateway": "http://"}, "gateways"), ({"gateway": "http://a,b"}, "gateways"),
        ({"spool_bytes": 1}, "spool"), ({"uploads": 0}, "uploads"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(how: dict, message: str) -> None:
    """The error is raised before any input is opened."""
    with pytest.raises(BadUsage, match=message):
        AgentSettings(**{"gateway": "http://a", **how})


def test_freshness_makes_large_batches() -> None:
    plain = AgentSettings(gateway="http://a").for_batching()
    assert plain == BatchLimits(bytes_max=4 << 20, age_s_max=1)
    fresh = AgentSettings(gateway="http://a", freshness_s=60).for_batching()
    assert fresh == BatchLimits(
        bytes_max=BATCH_BYTES_MAX, records_max=300_000, age_s_max=1, freshness_s=60
    )


@pytest.mark.parametrize("batch_bytes", [1, 1000, 1_400_001, 4 << 20, BATCH_BYTES_MAX])
def test_blocks_fill_a_batch_and_none_exceeds_it(batch_bytes: int) -> None:
    block = BlockLimits.of(BatchLimits(bytes_max=batch_bytes, records_max=9))
    blocks = batch_bytes // block.cost_bytes_max
    assert 0.99 * batch_bytes <= blocks * block.cost_bytes_max <= batch_bytes
    assert block.cost_bytes_max <= BLOCK_COST_BYTES_MAX
    assert block.records_max == 9


@pytest.mark.parametrize(
    "gateway", ["a:1", "ftp://a", "http://", "http://a?b", "http://a..b", f"http://{'a' * 64}.b"]
)
def test_a_gateway_whose_name_no_resolver_accepts_is_rejected(gateway: str) -> None:
    with pytest.raises(BadUsage, match="base URLs"):
        AgentSettings(gateway=gateway)


def test_settings_checked_on_use_are_rejected() -> None:
    """Batches, time zone and resource."""
    with pytest.raises(BadUsage, match="freshness"):
        AgentSettings(gateway="http://a", freshness_s=-1).for_batching()
    with pytest.raises(BadUsage, match="batch bytes"):
        BatchLimits(bytes_max=1 << 30)
    with pytest.raises(BadUsage, match="time zone"):
        AgentSettings(gateway="http://a", timezone="Nowhere/Else").zone()
    with pytest.raises(BadUsage, match="key=value"):
        AgentSettings(gateway="http://a", resource=("novalue",)).for_spool()
