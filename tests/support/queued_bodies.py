"""What a consumer of the work lists reads: the records that are no repetitions."""

import json
from collections import Counter

from support.reconciler_seed import enqueued

from sluice_protocol.column_slices import slice_columns
from sluice_protocol.frame import decode_frame
from sluice_protocol.ndjson import ndjson_from_columns
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore


async def queued_bodies(store: ObjectStore) -> Counter[str]:
    """Return how often a consumer of the work lists reads each body or name of a metric."""
    found: Counter[str] = Counter()
    for batch in await enqueued(store):
        blob = await store.get(ObjectKey(batch.raw_blob_key))
        assert isinstance(blob, Found)
        columns = decode_frame(blob.body).columns
        for start, end in batch.kept:
            for line in ndjson_from_columns(slice_columns(columns, start, end)):
                record = json.loads(line)
                found[record["body"] if "body" in record else record["name"]] += 1
    return found
