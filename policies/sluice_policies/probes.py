"""Requests that test the live policies; each has no effect even if it is allowed.

The expected result of each probe is what the simulator decides over the rendered documents. A
probe therefore also compares the simulator with a real store.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sluice_policies.evaluate import evaluate, request_for
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import RoleName
from sluice_protocol import keys
from sluice_store.administration import Trial

_ACTIONS = {
    Trial.PUT: "s3:PutObject",
    Trial.COPY: "s3:PutObject",
    Trial.MULTIPART: "s3:PutObject",
    Trial.DELETE: "s3:DeleteObject",
    Trial.DELETE_VERSION: "s3:DeleteObjectVersion",
    Trial.GET: "s3:GetObject",
    Trial.CONFIGURE: "s3:PutBucketVersioning",
    Trial.LOCK: "s3:PutObjectRetention",
}
_CREATE = {"IfNoneMatch": "*"}
_OTHER = {"ServerSideEncryption": "aws:kms:dsse"}
_NO_KEY = {"ServerSideEncryption": "aws:kms"}
_HEADERS = {"IfNoneMatch": "if-none-match", "ServerSideEncryption": "x-amz-server-side-encryption"}
PROBE_FOLDER = "sluice-probe/"
OUTSIDE = "sluice-probe-outside/"


class ProbeOutcome(StrEnum):
    """The result of a probe."""

    AS_REQUIRED = "as required"
    CANNOT = "the target cannot refuse it"
    NOT_TRIED = "not tried: the role has no profile in the settings"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyProbe:
    """One request that a store must allow or deny.

    Attributes:
        place: The prefix that contains the probe folder.
        must_be_denied: Whether the protocol requires that a policy denies it.
        headers: Further arguments of the call.
    """

    name: str
    role: RoleName
    trial: Trial
    place: str
    must_be_denied: bool
    requirements: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def action(self) -> str:
        """The action that the request needs."""
        return _ACTIONS[self.trial]

    def key(self, run: str) -> str:
        """Return the key, relative to the deployment, for one run of the probes."""
        return f"{self.place}{PROBE_FOLDER}{run}"


def _denied(
    name: str, role: RoleName, trial: Trial, place: str, *requirements: str, **headers: str
) -> PolicyProbe:
    return PolicyProbe(
        name=name,
        role=role,
        trial=trial,
        place=place,
        must_be_denied=True,
        headers=headers,
        requirements=requirements,
    )


def _allowed(name: str, role: RoleName, trial: Trial, place: str, **headers: str) -> PolicyProbe:
    return PolicyProbe(
        name=name,
        role=role,
        trial=trial,
        place=place,
        must_be_denied=False,
        headers=headers,
        requirements=("work",),
    )


def _accepting() -> Iterator[PolicyProbe]:
    gateway, put = RoleName.GATEWAY, Trial.PUT
    yield _denied("put-without-header", gateway, put, keys.ACCEPTED, "create-only")
    yield _allowed("put-with-header", gateway, put, keys.ACCEPTED, **_CREATE)
    yield _allowed("put-blob", gateway, put, keys.RAW_BLOBS, **_CREATE)
    yield _denied("copy-into-accepted", gateway, Trial.COPY, keys.ACCEPTED, "no-copy")
    yield _denied("copy-into-blobs", gateway, Trial.COPY, keys.RAW_BLOBS, "no-copy")
    yield _denied("multipart-into-accepted", gateway, Trial.MULTIPART, keys.ACCEPTED, "create-only")
    yield _denied("multipart-into-blobs", gateway, Trial.MULTIPART, keys.RAW_BLOBS, "no-copy")
    yield _denied("put-other-encryption", gateway, put, keys.RAW_BLOBS, "encryption", **_OTHER)
    yield _denied("put-unnamed-key", gateway, put, keys.RAW_BLOBS, "encryption", **_NO_KEY)
    yield _denied("put-outside", gateway, put, OUTSIDE, "own-prefixes")
    yield _denied("gateway-put-lake", gateway, put, keys.LAKE, "own-prefixes")
    yield _denied("spark-put-accepted", RoleName.SPARK, put, keys.ACCEPTED, "writers", **_CREATE)
    yield _allowed("spark-put-lake", RoleName.SPARK, put, keys.LAKE)


def _journaling() -> Iterator[PolicyProbe]:
    gateway, put, journals = RoleName.GATEWAY, Trial.PUT, keys.GATEWAY_JOURNALS
    processes = keys.GATEWAY_PROCESSES
    yield _allowed("put-registration", gateway, put, processes, **_CREATE)
    yield _allowed("put-journal", gateway, put, journals, **_CREATE)
    yield _denied("overwrite-registration", gateway, put, processes, "journals")
    yield _denied("overwrite-journal", gateway, put, journals, "journals")
    yield _denied("copy-into-journals", gateway, Trial.COPY, journals, "no-copy")
    yield _denied("multipart-into-journals", gateway, Trial.MULTIPART, journals, "no-copy")
    yield _denied("gateway-delete-registration", gateway, Trial.DELETE, processes, "journals")
    yield _denied("gateway-read-journal", gateway, Trial.GET, journals, "own-prefixes")
    yield _denied("operator-delete-journal", RoleName.OPERATOR, Trial.DELETE, journals, "journals")
    reconciler = RoleName.RECONCILER
    yield _denied("reconciler-put-journal", reconciler, put, journals, "writers", **_CREATE)
    yield _allowed("reconciler-read-journal", reconciler, Trial.GET, journals)
    yield _allowed("reconciler-delete-journal", reconciler, Trial.DELETE_VERSION, journals)


def _deleting() -> Iterator[PolicyProbe]:
    for role in (RoleName.GATEWAY, RoleName.GC, RoleName.OPERATOR):
        name = f"{role.value}-delete-accepted"
        yield _denied(name, role, Trial.DELETE, keys.ACCEPTED, "never-deleted")
    version = Trial.DELETE_VERSION
    yield _denied(
        "gc-delete-accepted-version", RoleName.GC, version, keys.ACCEPTED, "never-deleted"
    )
    yield _denied("gc-hide-blob", RoleName.GC, Trial.DELETE, keys.RAW_BLOBS, "gc-alone")
    spark = RoleName.SPARK
    yield _denied("spark-delete-blob", spark, version, keys.RAW_BLOBS, "gc-alone")
    yield _denied("spark-delete-list-version", spark, version, keys.WORK_LISTS, "own-prefixes")
    yield _denied("spark-hide-index-chunk", spark, Trial.DELETE, keys.INDEX, "own-prefixes")
    yield _allowed("spark-delete-index-chunk", spark, version, keys.INDEX)
    yield _denied("gc-lock-blob", RoleName.GC, Trial.LOCK, keys.RAW_BLOBS, "locks")
    yield _allowed("gc-delete-blob", RoleName.GC, version, keys.RAW_BLOBS)


def _separating() -> Iterator[PolicyProbe]:
    certifier, gc, maintainer = RoleName.CERTIFIER, RoleName.GC, RoleName.MAINTAINER
    put, version = Trial.PUT, Trial.DELETE_VERSION
    yield _denied("gc-put-certificate", gc, put, keys.AUDIT, "separation")
    yield _denied("gc-put-evidence", gc, put, keys.GC_EVIDENCE, "separation")
    yield _denied("gc-put-approval", gc, put, keys.GC_APPROVALS, "separation", **_CREATE)
    yield _denied("certifier-put-approval", certifier, put, keys.GC_APPROVALS, "writers", **_CREATE)
    yield _denied("gc-put-reference", gc, put, keys.ACCEPTED_BY_BLOB, "separation")
    yield _denied("gc-delete-reference", gc, version, keys.ACCEPTED_BY_BLOB, "separation")
    reconciler = RoleName.RECONCILER
    yield _allowed("reconciler-delete-reference", reconciler, version, keys.ACCEPTED_BY_BLOB)
    hide = Trial.DELETE
    yield _denied("reconciler-hide-reference", reconciler, hide, keys.ACCEPTED_BY_BLOB, "gc-alone")
    yield _denied("certifier-delete-blob", certifier, version, keys.RAW_BLOBS, "separation")
    yield _denied("certifier-put-proof", certifier, put, keys.GC_PROOFS, "writers")
    yield _denied("maintainer-delete-blob", maintainer, version, keys.RAW_BLOBS, "separation")
    yield _denied("maintainer-put-certificate", maintainer, put, keys.AUDIT, "separation")
    yield _allowed("certifier-put-certificate", certifier, put, keys.AUDIT)
    yield _allowed("gc-put-proof", gc, put, keys.GC_PROOFS)
    yield _allowed("maintainer-put-lake", maintainer, put, keys.LAKE)
    yield _allowed("maintainer-put-delete", maintainer, put, keys.DELETES, **_CREATE)
    for role in (maintainer, RoleName.OPERATOR, reconciler):
        yield _allowed(f"{role.value}-put-task", role, put, keys.MAINTAIN)


def _administering() -> Iterator[PolicyProbe]:
    configure = Trial.CONFIGURE
    yield _denied("operator-reconfigure", RoleName.OPERATOR, configure, "", "deployer-alone")
    yield _denied("gc-reconfigure", RoleName.GC, configure, "", "deployer-alone")
    yield _allowed("deployer-configure", RoleName.DEPLOYER, configure, "")
    yield _denied("auditor-put", RoleName.AUDITOR, Trial.PUT, keys.DOCTOR, "own-prefixes")
    yield _allowed("auditor-read", RoleName.AUDITOR, Trial.GET, keys.ACCEPTED)
    yield _allowed("operator-decide", RoleName.OPERATOR, Trial.PUT, keys.DECISIONS, **_CREATE)
    yield _allowed("operator-promote", RoleName.OPERATOR, Trial.PUT, keys.PROMOTIONS, **_CREATE)
    yield _denied("spark-promote", RoleName.SPARK, Trial.PUT, keys.PROMOTIONS, "writers", **_CREATE)
    yield _allowed("operator-hold", RoleName.OPERATOR, Trial.PUT, keys.RETENTION, **_CREATE)
    yield _allowed("certifier-expire", RoleName.CERTIFIER, Trial.PUT, keys.EXPIRED, **_CREATE)
    for role in (RoleName.CERTIFIER, RoleName.GC, RoleName.MAINTAINER):
        name = f"{role.value}-set-retention"
        yield _denied(name, role, Trial.PUT, keys.RETENTION, "writers", **_CREATE)
    yield _denied("gc-expire", RoleName.GC, Trial.PUT, keys.EXPIRED, "writers", **_CREATE)
    console, put = RoleName.CONSOLE, Trial.PUT
    yield _denied("console-put-accepted", console, put, keys.ACCEPTED, "writers", **_CREATE)
    yield _denied("console-put-certificate", console, put, keys.AUDIT, "writers")
    yield _denied("console-overwrite-approval", console, put, keys.GC_APPROVALS, "create-only")
    yield _denied("console-read-lake", console, Trial.GET, keys.LAKE, "own-prefixes")
    for role in (RoleName.OPERATOR, console):
        name = f"{role.value}-approve"
        yield _allowed(name, role, put, keys.GC_APPROVALS, **_CREATE)
    yield _allowed("console-decide", console, put, keys.DECISIONS, **_CREATE)
    yield _allowed("console-stop-plan", console, put, keys.GC_PLANS)
    yield _allowed("reconciler-put-list", RoleName.RECONCILER, Trial.PUT, keys.WORK_LISTS)


PROBES = (*_accepting(), *_journaling(), *_deleting(), *_separating(), *_administering())
"""Every probe, in order."""


def _request_headers(probe: PolicyProbe) -> dict[str, str]:
    headers = {_HEADERS[name]: value for name, value in probe.headers.items()}
    if probe.trial is Trial.COPY:
        headers["x-amz-copy-source"] = "/bucket/key"
    if probe.trial is Trial.MULTIPART:
        headers["s3:ObjectCreationOperation"] = "false"
    return headers


def simulated_refusal(policies: PolicySet, probe: PolicyProbe) -> bool:
    """Return True if the simulator denies a probe over these documents."""
    key = None if probe.trial is Trial.CONFIGURE else probe.key("run")
    request = request_for(policies, probe.role.value, probe.action, key, _request_headers(probe))
    return not evaluate(policies, request).allowed
