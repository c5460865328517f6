"""An S3-faithful bucket in memory: the reference model, and the main oracle of the tests.

No test server answers 409 or races like S3; this one does, and it can lose any answer on a plan.
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
