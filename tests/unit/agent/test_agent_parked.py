"""Why a batch was parked, when the record of it is damaged."""

from pathlib import Path

import pytest

from sluice_agent.spool.disk import RealDisk
from sluice_agent.spool.parked import read_reason


@pytest.mark.parametrize("body", [b"", b"{", b'{"reason":"\xff"}', b"[" * 100_000], ids=len)
def test_a_damaged_reason_is_unknown(tmp_path: Path, body: bytes) -> None:
    """Reading it must not end the agent, which reads it at each start."""
    path = tmp_path / "reason.json"
    path.write_bytes(body)
    assert read_reason(RealDisk(), path).reason == "unknown"
