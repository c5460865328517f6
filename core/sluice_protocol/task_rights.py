"""What each task of maintenance reads, writes and deletes, as prefixes of keys.

Policies are rendered from this table, and `sluice maintain` tries it at its start. No task both
certifies what the store contains and deletes blobs by such a certificate: `audit` does the one and
`gc` the other (ADR 39).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from sluice_protocol import keys
from sluice_protocol.version_expiry import SWEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRights:
    """The rights of one task, as prefixes relative to the deployment.

    Attributes:
        reads: Where it reads and lists.
        writes: Where it creates or replaces objects.
        uploads: Where it writes large files in parts.
        deletes: Where it deletes objects.
        expires: Where it deletes exact versions only.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    uploads: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    expires: tuple[str, ...] = ()


LEASES: Final = TaskRights(reads=(keys.AUTHORITY, keys.MAINTAIN), writes=(keys.MAINTAIN,))
"""What the process that schedules needs, whatever it runs."""

_EVIDENCE: Final = (
    *(keys.AUTHORITY, keys.ACCEPTED, keys.QUARANTINE, keys.RAW_BLOBS),
    *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB, keys.RAW_BLOBS_BY_TIME),
    *(keys.AUDIT, keys.GC_EVIDENCE, keys.GC_PLANS),
)

TASK_RIGHTS: Final = {
    "ingest": TaskRights(
        reads=(
            *(keys.AUTHORITY, keys.QUEUE, keys.WORK_LISTS, keys.RAW_BLOBS, keys.ACCEPTED),
            keys.LAKE,
        ),
        # It enqueues restored dead letters again.
        writes=(keys.QUEUE, keys.WORK_LISTS, keys.LAKE),
        uploads=(keys.LAKE,),
        deletes=(keys.LAKE,),
    ),
    "rollup": TaskRights(
        reads=(keys.AUTHORITY, keys.LAKE, keys.ROLLUP, keys.DELETES, keys.ACTIVE_DELETES),
        writes=(keys.LAKE, keys.ROLLUP),
        uploads=(keys.LAKE,),
        deletes=(keys.LAKE, keys.ROLLUP),
    ),
    "compact": TaskRights(
        reads=(keys.AUTHORITY, keys.LAKE, keys.ROLLUP, keys.DELETES, keys.ACTIVE_DELETES),
        writes=(keys.LAKE, keys.ACTIVE_DELETES, keys.ROLLUP),
        uploads=(keys.LAKE,),
        deletes=(keys.LAKE, keys.ROLLUP),
    ),
    "index": TaskRights(
        reads=(keys.AUTHORITY, keys.LAKE, keys.INDEX), writes=(keys.INDEX,), expires=(keys.INDEX,)
    ),
    "retention": TaskRights(
        reads=(keys.DELETES, keys.ACTIVE_DELETES), writes=(keys.DELETES, keys.ACTIVE_DELETES)
    ),
    "queue": TaskRights(
        reads=(keys.AUTHORITY, keys.QUEUE, keys.WORK_LISTS), deletes=(keys.QUEUE, keys.WORK_LISTS)
    ),
    "noncurrent": TaskRights(reads=SWEPT, expires=SWEPT),
    "audit": TaskRights(
        reads=_EVIDENCE,
        writes=(
            *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB),
            *(keys.AUDIT, keys.GC_EVIDENCE, keys.GC_PLANS),
        ),
        deletes=(keys.GC_EVIDENCE,),
    ),
    "gc": TaskRights(
        reads=(*_EVIDENCE, keys.GC_APPROVALS, keys.GC_PROOFS, keys.GC_TRASH),
        writes=(keys.GC_PLANS, keys.GC_PROOFS, keys.GC_TRASH),
        expires=(keys.RAW_BLOBS,),
    ),
}
"""By the name of the task. `gc` is the execution of plans; a whole cycle needs `audit` too."""

CERTIFYING: Final = frozenset({"audit", "gc"})
"""The tasks that the maintainer role does not run: each has a separate role."""


def union_of(parts: Iterable[TaskRights]) -> TaskRights:
    """Return the rights of several tasks together, without any that another one contains."""
    found = list(parts)
    both = {
        one.name: _widest([prefix for part in found for prefix in getattr(part, one.name)])
        for one in fields(TaskRights)
    }
    # A right to delete objects is a right to delete their versions.
    both["expires"] = tuple(one for one in both["expires"] if one not in both["deletes"])
    return TaskRights(**both)


def _widest(prefixes: list[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(prefixes))
    return tuple(
        one for one in unique if not any(one != other and one.startswith(other) for other in unique)
    )
