"""A bucket in memory that behaves as S3: the reference model of the tests.

No other test server returns 409 or has races as S3 does. This one does, and it can lose any
response according to a plan.
"""

from sluice_store.memory.bucket import MemoryBucket
from sluice_store.memory.faults import Crashed, Fault, FaultPlan, NoFaults, RandomFaults, Scripted
from sluice_store.memory.transport import open_memory_store

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
