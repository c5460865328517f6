"""The access matrix: which role may do what under which prefix.

Statements are built from this table and proved against it. Prefixes are those of
`sluice_protocol.keys`. A role that is not listed for a verb and a prefix has no right there; the
identity policies contain nothing more than this table.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_policies.settings import RoleName
from sluice_protocol import keys
from sluice_protocol.blob_deletion import SWEPT
from sluice_protocol.maintenance import CERTIFYING, LEASES, TASK_RIGHTS, TaskRights, union_of

GC: Final = "gc/v1/"

EVERYTHING: Final = keys.ALL_PREFIXES

LAKE_PLACES: Final = (
    *(f"{keys.LAKE}batches/", f"{keys.LAKE}dead_letters/", f"{keys.LAKE}rollups/"),
    f"{keys.ROLLUP}source-ranges/",
)
"""What shows where a batch is in the lake, without its records."""


class Verb(StrEnum):
    """A kind of operation on the objects under a prefix."""

    READ = "read"
    WRITE = "write"
    MULTIPART = "multipart"
    DELETE = "delete"
    DELETE_VERSION = "delete-version"


ACTIONS: Final = {
    Verb.READ: ("s3:GetObject", "s3:GetObjectVersion"),
    Verb.WRITE: ("s3:PutObject",),
    Verb.MULTIPART: ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"),
    Verb.DELETE: ("s3:DeleteObject", "s3:DeleteObjectVersion"),
    Verb.DELETE_VERSION: ("s3:DeleteObjectVersion",),
}
"""The actions of each verb."""

LISTING: Final = ("s3:ListBucket", "s3:ListBucketVersions")
BUCKET_READS: Final = ("s3:GetBucketLocation", "s3:GetBucketVersioning")
"""The properties of the bucket that every role reads: its region and its versioning state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The rights of one role: prefixes per verb, relative to the deployment.

    With `inspect` it reads, and with `configure` it changes, the bucket's configuration.
    """

    purpose: str
    prefixes: dict[Verb, tuple[str, ...]]
    inspect: bool = False
    configure: bool = False


def prefixes_of(rights: TaskRights) -> dict[Verb, tuple[str, ...]]:
    """Return the rights of a task by verb."""
    found = {
        Verb.READ: rights.reads,
        Verb.WRITE: rights.writes,
        Verb.MULTIPART: rights.uploads,
        Verb.DELETE: rights.deletes,
        Verb.DELETE_VERSION: rights.expires,
    }
    return {verb: prefixes for verb, prefixes in found.items() if prefixes}


MATRIX: Final = {
    RoleName.GATEWAY: Rights(
        purpose="accepts uploads: blob, manifest, quarantine, journal; resolves conflicts",
        prefixes={
            Verb.READ: (
                *(keys.RAW_BLOBS, keys.ACCEPTED, keys.QUARANTINE, keys.QUARANTINE_BY_BLOB),
                *(keys.AUTHORITY, keys.DECISIONS, keys.DOCTOR, keys.HIGH_WATER),
            ),
            Verb.WRITE: (
                *(keys.RAW_BLOBS, keys.ACCEPTED, keys.QUARANTINE, keys.QUARANTINE_BY_BLOB),
                # A gateway with a local spool claims the authority itself.
                *(keys.DECISIONS, keys.DOCTOR, keys.AUTHORITY, keys.HIGH_WATER),
                # Registration and journal. The name of a process is unique, and a repeated create
                # has the same bytes, so `Exists` resolves an unknown outcome without a read.
                keys.GATEWAYS,
            ),
            Verb.DELETE: (keys.DOCTOR,),
        },
    ),
    RoleName.RECONCILER: Rights(
        purpose="discovers manifests, builds indexes and work lists, appends to queues",
        prefixes={
            Verb.READ: (
                *(keys.RAW_BLOBS, keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED, keys.ACCEPTED_BY_TIME),
                *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE, keys.QUARANTINE_BY_BLOB, keys.QUEUE),
                *(keys.WORK_LISTS, keys.AUTHORITY, keys.DECISIONS, keys.DELETES, keys.DOCTOR),
                *(keys.RECONCILER, keys.AUDIT, GC, keys.LAKE, keys.GATEWAYS, keys.MAINTAIN),
                *(keys.RETENTION, keys.EXPIRED),
            ),
            Verb.WRITE: (
                *(keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED_BY_TIME, keys.ACCEPTED_BY_BLOB),
                *(keys.QUARANTINE_BY_BLOB, keys.WORK_LISTS, keys.QUEUE, keys.RECONCILER),
                # `sluice queue lanes` records the number of lanes.
                keys.AUTHORITY,
                # The lease of the task `queue`, in a process that runs with this role.
                *(keys.DECISIONS, keys.MAINTAIN),
                # A rebuild fences the ingestion before it replaces a register (ADR 26).
                keys.LOGS_LOG,
            ),
            # Journals are deleted when a full pass and the retry horizon are over (ADR 22).
            Verb.DELETE: (keys.WORK_LISTS, keys.QUEUE, keys.RECONCILER, keys.GATEWAYS),
            # A rebuild deletes by-time entries without a manifest or blob, version by version. All
            # entries of an expired batch end when its blob is deleted (ADR 48).
            Verb.DELETE_VERSION: (
                *(keys.ACCEPTED_BY_TIME, keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED_BY_BLOB),
            ),
        },
    ),
    RoleName.SPARK: Rights(
        purpose="ingests accepted batches into the lake and maintains it",
        prefixes={
            Verb.READ: (
                *(keys.RAW_BLOBS, keys.ACCEPTED, keys.ACCEPTED_BY_TIME, keys.WORK_LISTS),
                *(keys.QUEUE, keys.AUTHORITY, keys.DELETES, keys.LAKE, keys.INDEX, keys.ROLLUP),
                *(keys.MAINTAIN, keys.ACTIVE_DELETES, keys.PROMOTIONS, keys.RETENTION),
            ),
            # The leases of `sluice maintain` save work and prove nothing.
            Verb.WRITE: (
                *(keys.QUEUE, keys.LAKE, keys.INDEX, keys.ROLLUP),
                # Restored dead letters are enqueued again.
                *(keys.MAINTAIN, keys.ACTIVE_DELETES, keys.WORK_LISTS),
            ),
            Verb.MULTIPART: (keys.LAKE,),
            # Rollup chunks that contain deleted points are deleted (ADR 35).
            Verb.DELETE: (keys.LAKE, keys.ROLLUP),
            # Chunks of files that no longer exist are deleted by version (ADR 33).
            Verb.DELETE_VERSION: (keys.INDEX,),
        },
    ),
    RoleName.MAINTAINER: Rights(
        purpose="runs every task of `sluice maintain` except audits, expiry and garbage collection",
        prefixes=prefixes_of(
            union_of(
                [LEASES, *(one for name, one in TASK_RIGHTS.items() if name not in CERTIFYING)]
            )
        ),
    ),
    RoleName.CERTIFIER: Rights(
        purpose=(
            "audits: writes certificates, their evidence, missing references, signed plans and"
            " tombstones"
        ),
        prefixes={
            Verb.READ: EVERYTHING,
            # Tombstones; it cannot set the rule by which batches expire, nor lift a hold.
            Verb.WRITE: (
                *(*TASK_RIGHTS["audit"].writes, *TASK_RIGHTS["expire"].writes, keys.MAINTAIN),
            ),
            Verb.DELETE: TASK_RIGHTS["audit"].deletes,
        },
    ),
    RoleName.GC: Rights(
        purpose="executes plans: proves, and deletes unreferenced versions of blobs",
        prefixes={
            Verb.READ: EVERYTHING,
            # A copy in the trash can be restored under its former key.
            Verb.WRITE: (keys.RAW_BLOBS, *TASK_RIGHTS["gc"].writes, keys.MAINTAIN),
            Verb.DELETE: (keys.GC_TRASH,),
            # Where the store has no lifecycle, `sluice gc noncurrent` deletes what it would delete.
            Verb.DELETE_VERSION: (keys.RAW_BLOBS, *SWEPT),
        },
    ),
    RoleName.AUDITOR: Rights(
        purpose="reads everything and changes nothing",
        prefixes={Verb.READ: EVERYTHING},
        inspect=True,
    ),
    RoleName.OPERATOR: Rights(
        purpose=(
            "resolves conflicts, deletes records, promotes attributes, sets retention, holds"
            " batches, approves and stops deletion plans, resumes halted tasks, runs the doctor"
        ),
        prefixes={
            Verb.READ: EVERYTHING,
            Verb.WRITE: (
                *(keys.DECISIONS, keys.DELETES, keys.ACTIVE_DELETES, keys.DOCTOR, keys.MAINTAIN),
                *(keys.GC_APPROVALS, keys.GC_PLANS, keys.PROMOTIONS, keys.RETENTION),
            ),
            Verb.DELETE: (keys.DOCTOR,),
        },
        inspect=True,
    ),
    RoleName.CONSOLE: Rights(
        purpose=(
            "serves the console: reads everything but the records in the lake, records decisions"
            " about conflicts and deletion plans"
        ),
        prefixes={
            Verb.READ: (
                *(keys.RAW_BLOBS, keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED, keys.ACCEPTED_BY_TIME),
                *(keys.ACCEPTED_BY_BLOB, keys.QUARANTINE, keys.QUARANTINE_BY_BLOB, keys.QUEUE),
                *(keys.WORK_LISTS, keys.AUTHORITY, keys.DECISIONS, keys.DOCTOR, keys.RECONCILER),
                *(keys.GATEWAYS, keys.MAINTAIN, keys.AUDIT, GC, *LAKE_PLACES),
                *(keys.RETENTION, keys.EXPIRED),
            ),
            # Nothing that it writes deletes bytes: a stop mark next to a plan, and an approval that
            # other conditions precede.
            Verb.WRITE: (keys.DECISIONS, keys.GC_APPROVALS, keys.GC_PLANS),
        },
    ),
    RoleName.DEPLOYER: Rights(
        purpose="configures the bucket and its policies, creates the authority's settings",
        prefixes={
            Verb.READ: (keys.AUTHORITY, keys.DOCTOR),
            Verb.WRITE: (keys.AUTHORITY, keys.DOCTOR),
            Verb.DELETE: (keys.DOCTOR,),
        },
        inspect=True,
        configure=True,
    ),
}
"""The rights of each role."""

RECORDED_DECISIONS: Final = (
    *(keys.ACCEPTED, keys.QUARANTINE, keys.DECISIONS, keys.DELETES, keys.AUTHORITY),
    *(keys.PROMOTIONS, keys.GC_APPROVALS, keys.RETENTION, keys.EXPIRED),
)
"""Records that are written once and permanent: a second write under the same key would change an
earlier decision.
"""

CREATE_ONLY: Final = (*RECORDED_DECISIONS, keys.GATEWAYS)
"""Every prefix whose objects are written once. Acceptance journals are deleted later."""

NEVER_DELETED: Final = (*RECORDED_DECISIONS, keys.QUARANTINE_BY_BLOB, keys.AUDIT)
"""Objects that no role deletes: decisions, and evidence of what was refused and audited."""

EVIDENCE: Final = (*NEVER_DELETED, keys.ACCEPTED_BY_BLOB)
"""Decisions, and the evidence with which GC proves a blob unused: none of it is hidden or changed.
References of expired batches are deleted, by a role that deletes no blob.
"""

DELETION_FILES: Final = (keys.GC_PLANS, keys.GC_PROOFS, keys.GC_TRASH, keys.GC_EVIDENCE)
"""The files of audits, plans and runs."""

GUARDED_WRITES: Final = (
    *(*EVIDENCE, keys.RAW_BLOBS, *DELETION_FILES, keys.QUEUE, keys.WORK_LISTS, keys.GATEWAYS),
)
"""Prefixes where the bucket policy, not the identity policies alone, admits only the listed
writers.
"""

BASIS_OF_DELETION: Final = (
    *(keys.ACCEPTED, keys.QUARANTINE, keys.ACCEPTED_BY_BLOB, keys.QUARANTINE_BY_BLOB),
    *(keys.AUTHORITY, keys.DECISIONS, keys.AUDIT, keys.GC_EVIDENCE),
    *(keys.GC_APPROVALS, keys.RETENTION, keys.EXPIRED),
)
"""The evidence for deleting a blob, which the role that deletes blobs cannot write."""

DELETING: Final = ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:ReplicateDelete")
"""Actions that delete an object or one of its versions, or hide it under a delete marker."""

REWRITING: Final = (
    *("s3:DeleteObject", "s3:ReplicateDelete", "s3:ReplicateTags"),
    *("s3:ObjectOwnerOverrideToBucketOwner", "s3:PutObjectAcl", "s3:PutObjectVersionAcl"),
)
"""Actions that hide, change or expose an object without a PutObject or a version delete."""

REENCRYPTING: Final = ("s3:ReplicateObject", "s3:UpdateObjectEncryption")
"""Actions that replace an object, with an encryption that no header of a PutObject names."""


LOCKS: Final = (
    "s3:BypassGovernanceRetention",
    "s3:PutObjectLegalHold",
    "s3:PutObjectRetention",
)
"""Actions that set, extend or bypass a lock on one object."""


def writers(prefix: str) -> tuple[RoleName, ...]:
    """Return the roles that write under a prefix."""
    return tuple(
        name for name, rights in MATRIX.items() if prefix in rights.prefixes.get(Verb.WRITE, ())
    )


def rights_of(name: RoleName, action: str) -> tuple[str, ...]:
    """Return the prefixes under which a role may call an object action."""
    found = [
        prefix
        for verb, prefixes in MATRIX[name].prefixes.items()
        if action in ACTIONS[verb]
        for prefix in prefixes
    ]
    return tuple(dict.fromkeys(found))
