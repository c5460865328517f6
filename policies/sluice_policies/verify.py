"""Verification of a live bucket: compare its documents, prove them, and send probes.

It also finds misconfigurations that would lose data, whatever the policies deny.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from sluice_policies.configuration import ConfigurationPart, lifecycle_faults
from sluice_policies.live_documents import (
    REPLICATION,
    DocumentChange,
    LiveDocuments,
    apply_changes,
    bucket_of,
    changes,
    read_live,
)
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.probes import PROBES, PolicyProbe, ProbeOutcome, simulated_refusal
from sluice_policies.prove import Verdict, all_proved, prove
from sluice_policies.settings import RoleName, Settings, Target
from sluice_protocol import keys
from sluice_store.administration import Administration, open_administration
from sluice_store.s3.settings import S3Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Misconfiguration:
    """A setting that would lose data: its effect, the objects concerned, and the remedy."""

    part: str
    description: str


def _clearing(settings: Settings, live: LiveDocuments) -> Iterator[Misconfiguration]:
    for fault in lifecycle_faults(settings, live.parts.get(ConfigurationPart.LIFECYCLE)):
        yield Misconfiguration(part=ConfigurationPart.LIFECYCLE, description=str(fault))


def _versioning(live: LiveDocuments) -> Iterator[Misconfiguration]:
    value = live.parts.get(ConfigurationPart.VERSIONING)
    status = value.get("Status", "Off") if isinstance(value, Mapping) else "Off"
    if status != "Enabled":
        yield Misconfiguration(
            part=ConfigurationPart.VERSIONING,
            description=f"versioning is {status}: an overwrite or delete under {keys.RAW_BLOBS} "
            f"loses the only copy, a late delete removes a blob that was written "
            f"again, and GC only plans; enable versioning",
        )


def _lock(settings: Settings, live: LiveDocuments) -> Iterator[Misconfiguration]:
    if settings.object_lock is not None and live.parts.get(ConfigurationPart.OBJECT_LOCK) is None:
        yield Misconfiguration(
            part=ConfigurationPart.OBJECT_LOCK,
            description=(
                "Object Lock is configured in the settings but not enabled: versions can be "
                "deleted at any age"
            ),
        )


def _replication(live: LiveDocuments) -> Iterator[Misconfiguration]:
    if live.replication is not None:
        yield Misconfiguration(
            part=REPLICATION,
            description="objects are replicated out of the bucket without a setting for it: "
            "accepted bytes are copied to a place without these rules; remove the "
            "replication, or confirm that it is intended",
        )


def find_misconfigurations(settings: Settings, live: LiveDocuments) -> tuple[Misconfiguration, ...]:
    """Return every misconfiguration of the live bucket."""
    return (
        *_versioning(live),
        *_clearing(settings, live),
        *_lock(settings, live),
        *_replication(live),
    )


OpenRole = Callable[[RoleName], AbstractAsyncContextManager[Administration] | None]
"""Open the store with a role's credentials; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One probe and its result.

    `answer` has status and code of the store's response.
    """

    probe: PolicyProbe
    outcome: ProbeOutcome
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The findings about a live bucket.

    Attributes:
        verdicts: Of the live documents; empty if a document is missing.
    """

    changes: tuple[DocumentChange, ...]
    misconfigurations: tuple[Misconfiguration, ...]
    verdicts: tuple[Verdict, ...]
    probes: tuple[ProbeResult, ...]

    @property
    def good(self) -> bool:
        """Whether the bucket has no difference, misconfiguration, violation or wrong probe."""
        return not (
            self.changes
            or self.misconfigurations
            or not all_proved(self.verdicts)
            or any(item.outcome is ProbeOutcome.WRONG for item in self.probes)
        )


def _judge(policies: PolicySet, probe: PolicyProbe, *, refused: bool) -> ProbeOutcome:
    if refused == probe.must_be_denied:
        return ProbeOutcome.AS_REQUIRED
    expected = simulated_refusal(policies, probe)
    cannot = policies.target is Target.VERSITYGW and probe.must_be_denied and not expected
    return ProbeOutcome.CANNOT if cannot else ProbeOutcome.WRONG


async def _send(
    policies: PolicySet, probe: PolicyProbe, admin: Administration, run: str
) -> ProbeResult:
    key = f"{policies.settings.bucket.prefix}{probe.key(run)}"
    answer = await admin.attempt(probe.trial, key, probe.headers)
    outcome = _judge(policies, probe, refused=answer.refused)
    return ProbeResult(
        probe=probe, outcome=outcome, answer=f"{answer.status} {answer.code}".strip()
    )


async def send_probes(
    policies: PolicySet, open_role: OpenRole, run: str
) -> AsyncIterator[ProbeResult]:
    """Send every probe with its role's credentials, role by role.

    `run` is the last part of every key.
    """
    for name in RoleName:
        mine = [probe for probe in PROBES if probe.role is name]
        session = open_role(name)
        if session is None:
            for probe in mine:
                yield ProbeResult(probe=probe, outcome=ProbeOutcome.NOT_TRIED)
            continue
        async with session as admin:
            for probe in mine:
                yield await _send(policies, probe, admin, run)


def verdicts_on(settings: Settings, target: Target, live: LiveDocuments) -> tuple[Verdict, ...]:
    """Prove the properties of the live documents; return none if a document is missing."""
    policies = live.policies(settings, target)
    lifecycle = live.parts.get(ConfigurationPart.LIFECYCLE) or {"Rules": []}
    return () if policies is None else prove(policies, lifecycle)


async def verify(
    settings: Settings, target: Target, admin: Administration, open_role: OpenRole, run: str
) -> Verification:
    """Read, compare and prove a live bucket and send probes; nothing is changed."""
    live = await read_live(settings, target, admin)
    rendered = policy_set(settings, target)
    return Verification(
        changes=changes(settings, target, live),
        misconfigurations=find_misconfigurations(settings, live),
        verdicts=verdicts_on(settings, target, live),
        probes=tuple([item async for item in send_probes(rendered, open_role, run)]),
    )


def open_with_profiles(settings: Settings, where: S3Settings) -> OpenRole:
    """Return a function that opens a bucket with the profile of a role."""

    def open_role(name: RoleName) -> AbstractAsyncContextManager[Administration] | None:
        profile = settings.role(name).profile
        if not profile:
            return None
        return open_administration(
            S3Settings(
                bucket=where.bucket,
                endpoint=where.endpoint,
                region=where.region,
                profile=profile,
                ca_bundle=where.ca_bundle,
            )
        )

    return open_role


async def verify_bucket(settings: Settings, where: S3Settings, run: str) -> Verification:
    """Open a bucket and verify it, with probes of each role that has a profile."""
    async with open_administration(where) as admin:
        opened = open_with_profiles(settings, where)
        return await verify(settings, settings.target, admin, opened, run)


async def apply_and_prove(settings: Settings, wanted: tuple[DocumentChange, ...]) -> bool:
    """Open the bucket, write changes, and return whether the live documents are proved.

    After an error of the store, earlier writes remain; `NotApplied` means that a document differs.
    """
    target = settings.target
    async with open_administration(bucket_of(settings)) as admin:
        await apply_changes(settings, target, admin, wanted)
        live = await read_live(settings, target, admin)
    return all_proved(verdicts_on(settings, target, live))
