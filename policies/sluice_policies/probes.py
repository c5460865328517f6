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
        name: Its name in reports and in `docs/policies.md`.
        role: The role whose credentials are used.
        trial: The request.
        place: The prefix that contains the probe folder.
        refuse: Whether the protocol requires that a policy denies it.
        headers: Further arguments of the call.
        tries: Names of the requirements (`requirements`) that it tests.
    """

    name: str
    role: RoleName
    trial: Trial
    place: str
    refuse: bool
    tries: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def action(self) -> str:
        """The action that the request needs."""
        return _ACTIONS[self.trial]

    def key(self, run: str) -> str:
        """Return the key, relative to the deployment, for one run of the probes."""
        return f"{self.place}{PROBE_FOLDER}{run}"


def _no(
    name: str, role: RoleName, trial: Trial, place: str, *tries: str, **headers: str
) -> PolicyProbe:
    return PolicyProbe(
        name=name, role=role, trial=trial, place=place, refuse=True, headers=headers, tries=tries
    )


def _yes(name: str, role: RoleName, trial: Trial, place: str, **headers: str) -> PolicyProbe:
    return PolicyProbe(
        name=name,
        role=role,
        trial=trial,
        place=place,
        refuse=False,
        headers=headers,
        tries=("work",),
    )


def _accepting() -> Iterator[PolicyProbe]:
    gateway, put = RoleName.GATEWAY, Trial.PUT
    yield _no("put-without-header", gateway, put, keys.ACCEPTED, "create-only")
    yield _yes("put-with-header", gateway, put, keys.ACCEPTED, **_CREATE)
    yield _yes("put-blob", gateway, put, keys.RAW_BLOBS, **_CREATE)
    yield _no("copy-into-accepted", gateway, Trial.COPY, keys.ACCEPTED, "no-copy")
    yield _no("copy-into-blobs", gateway, Trial.COPY, keys.RAW_BLOBS, "no-copy")
    yield _no("multipart-into-accepted", gateway, Trial.MULTIPART, keys.ACCEPTED, "create-only")
    yield _no("multipart-into-blobs", gateway, Trial.MULTIPART, keys.RAW_BLOBS, "no-copy")
    yield _no("put-other-encryption", gateway, put, keys.RAW_BLOBS, "encryption", **_OTHER)
    yield _no("put-outside", gateway, put, OUTSIDE, "own-prefixes")
    yield _no("gateway-put-lake", gateway, put, keys.LAKE, "own-prefixes")
    yield _no("spark-put-accepted", RoleName.SPARK, put, keys.ACCEPTED, "writers", **_CREATE)
    yield _yes("spark-put-lake", RoleName.SPARK, put, keys.LAKE)


def _deleting() -> Iterator[PolicyProbe]:
    for role in (RoleName.GATEWAY, RoleName.GC, RoleName.OPERATOR):
        name = f"{role.value}-delete-accepted"
        yield _no(name, role, Trial.DELETE, keys.ACCEPTED, "never-deleted")
    version = Trial.DELETE_VERSION
    yield _no("gc-delete-accepted-version", RoleName.GC, version, keys.ACCEPTED, "never-deleted")
    yield _no("gc-hide-blob", RoleName.GC, Trial.DELETE, keys.RAW_BLOBS, "gc-alone")
    yield _no("spark-delete-blob", RoleName.SPARK, version, keys.RAW_BLOBS, "gc-alone")
    yield _no("gc-lock-blob", RoleName.GC, Trial.LOCK, keys.RAW_BLOBS, "locks")
    yield _yes("gc-delete-blob", RoleName.GC, version, keys.RAW_BLOBS)


def _administering() -> Iterator[PolicyProbe]:
    configure = Trial.CONFIGURE
    yield _no("operator-reconfigure", RoleName.OPERATOR, configure, "", "deployer-alone")
    yield _no("gc-reconfigure", RoleName.GC, configure, "", "deployer-alone")
    yield _yes("deployer-configure", RoleName.DEPLOYER, configure, "")
    yield _no("auditor-put", RoleName.AUDITOR, Trial.PUT, keys.DOCTOR, "own-prefixes")
    yield _yes("auditor-read", RoleName.AUDITOR, Trial.GET, keys.ACCEPTED)
    yield _yes("operator-decide", RoleName.OPERATOR, Trial.PUT, keys.DECISIONS, **_CREATE)
    yield _yes("reconciler-put-list", RoleName.RECONCILER, Trial.PUT, keys.WORK_LISTS)


PROBES = (*_accepting(), *_deleting(), *_administering())
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
