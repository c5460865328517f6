"""A model of one S3 bucket in memory, for tests of races, kills and faults.

The tests of everything else run on `moto` or versitygw. Neither of them responds with 409, loses a
response on demand, applies a write late, moves its clock, or repeats a run from a seed. This model
does: `open_memory_store` puts the product's S3 adapter over it without a network, and
`serve_memory` serves it over HTTP for the real client. A plan decides the fault of each call.

The model passes the conformance suite of the store (`tests/conformance/store/test_memory.py` and
`test_memory_http.py`), otherwise a test on it would prove nothing.
"""

from support.memory_bucket.bucket import MemoryBucket
from support.memory_bucket.faults import (
    Crashed,
    Fault,
    FaultPlan,
    NoFaults,
    RandomFaults,
    Scripted,
)
from support.memory_bucket.transport import open_memory_store

__all__ = [
    "Crashed",
    "Fault",
    "FaultPlan",
    "MemoryBucket",
    "NoFaults",
    "RandomFaults",
    "Scripted",
    "open_memory_store",
]
