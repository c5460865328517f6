"""Golden files pin bytes that are stored or sent; `SLUICE_UPDATE_GOLDEN=1` writes them again."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(place: str, data: bytes) -> bytes:
    """Return the pinned bytes of `place`; with `SLUICE_UPDATE_GOLDEN` set, pin `data` first."""
    path = GOLDEN / place
    if os.environ.get("SLUICE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return path.read_bytes()
