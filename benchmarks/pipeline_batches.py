"""Batches of unique lines for the pipeline benchmark: frames, blobs, manifests."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.manifests import log_manifest
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.frame import encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.manifests import AcceptedManifest

LINES: Final = 40_000
"""Lines per frame: about 4.5 MiB of raw columns."""
T0_NS: Final = 1_790_000_000_000_000_000
AGENT: Final = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBatch:
    """One accepted batch and the size of its columns."""

    manifest: AcceptedManifest
    raw_bytes: int


def _lines(first: int) -> list[bytes]:
    seeded = np.random.default_rng(first)
    tokens = seeded.integers(0, 2**62, LINES).tolist()
    sizes = seeded.integers(100, 90_000, LINES).tolist()
    return [
        b"10.%d.%d.%d - - GET /api/v1/items/%d?session=%x HTTP/1.1 %d %d rt=0.%03d host=web-%d"
        % (n >> 16 & 255, n >> 8 & 255, n & 255, n, token, 200 + n % 5, size, n % 997, n % 16)
        for n, token, size in zip(itertools.count(first), tokens, sizes, strict=False)
    ]


def make_batch(root: Path, number: int) -> PipelineBatch:
    """Create one frame of unique lines and store its blob."""
    first = number * LINES
    bodies = _lines(first)
    offsets = np.zeros(LINES + 1, np.int32)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    columns = LogColumns(
        ts=T0_NS + np.arange(first, first + LINES) * 1_000_003,
        body=TextColumn(offsets=offsets, data=b"".join(bodies)),
        severity=(np.arange(LINES) % 24).astype(np.uint8),
    )
    who = Identity(agent_id=AGENT, boot_id="b", seq_start=first, seq_end=first + LINES - 1)
    frame = encode_frame(identity=who, columns=columns, resource=(("host.name", "h"),))
    digest = digest_of(frame)
    path = root / blob_key(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame)
    span = int(columns.ts[0]), int(columns.ts[-1])
    manifest = log_manifest(who, frame, T0_NS, span)
    return PipelineBatch(manifest=manifest, raw_bytes=len(columns.body.data) + 13 * LINES)
