"""The records of a batch that its work list does not name as repeated."""

from dataclasses import replace

import msgspec

from sluice_lake.records import DecodedBatch
from sluice_protocol.column_slices import slice_columns
from sluice_protocol.frame import Frame, span_of
from sluice_protocol.manifests import AcceptedManifest


def kept_batches(frame: Frame, manifest: AcceptedManifest, sequence: int) -> list[DecodedBatch]:
    """Return the kept records of a batch, each range of them as a batch; usually one.

    Args:
        frame: The frame of the batch.
        manifest: The copy of its manifest in the work list.
        sequence: As in `DecodedBatch`.
    """
    frames = [frame]
    if manifest.repeated:
        frames = [_cut(frame, start, end) for start, end in manifest.kept]
    return [
        DecodedBatch(frame=one, accepted_at_ns=manifest.accepted_at_unix_ns, sequence=sequence)
        for one in frames
    ]


def _cut(frame: Frame, start: int, end: int) -> Frame:
    whole = frame.envelope
    columns = slice_columns(frame.columns, start, end)
    min_ts_ns, max_ts_ns = span_of(columns)
    envelope = msgspec.structs.replace(
        whole,
        seq_start=whole.seq_start + start,
        seq_end=whole.seq_start + end - 1,
        count=end - start,
        min_ts_ns=min_ts_ns,
        max_ts_ns=max_ts_ns,
    )
    share = frame.raw_bytes * (end - start) // whole.count
    return replace(frame, envelope=envelope, columns=columns, raw_bytes=share)
