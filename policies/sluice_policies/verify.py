"""Verification of a live bucket: compare its documents, prove them, and send probes."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from sluice_policies.live_documents import DocumentChange, LiveDocuments, changes, read_live
from sluice_policies.misconfigurations import Misconfiguration, find_misconfigurations
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.probes import PROBES, PolicyProbe, ProbeOutcome, simulated_refusal
from sluice_policies.prove import Verdict, prove
from sluice_policies.settings import RoleName, Settings, Target
from sluice_store.administration import Administration

OpenRole = Callable[[RoleName], AbstractAsyncContextManager[Administration] | None]
"""Open the store with a role's credentials; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One probe and its result.

    Attributes:
        probe: The probe.
        outcome: The result.
        answer: Status and code of the store's response.
    """

    probe: PolicyProbe
    outcome: ProbeOutcome
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The findings about a live bucket.

    Attributes:
        changes: Documents that differ from the rendered ones.
        misconfigurations: Settings that would lose data.
        verdicts: The properties of the live documents; empty if a document is missing.
        tried: The results of the probes.
    """

    changes: tuple[DocumentChange, ...]
    misconfigurations: tuple[Misconfiguration, ...]
    verdicts: tuple[Verdict, ...]
    tried: tuple[ProbeResult, ...]

    @property
    def good(self) -> bool:
        """Whether the bucket has no difference, misconfiguration, violation or wrong probe."""
        return not (
            self.changes
            or self.misconfigurations
            or not self.verdicts
            or any(not verdict.holds for verdict in self.verdicts)
            or any(item.outcome is ProbeOutcome.WRONG for item in self.tried)
        )


def _judge(policies: PolicySet, probe: PolicyProbe, *, refused: bool) -> ProbeOutcome:
    if refused == probe.refuse:
        return ProbeOutcome.AS_REQUIRED
    expected = simulated_refusal(policies, probe)
    cannot = policies.target is Target.VERSITYGW and probe.refuse and not expected
    return ProbeOutcome.CANNOT if cannot else ProbeOutcome.WRONG


async def _try(
    policies: PolicySet, probe: PolicyProbe, admin: Administration, run: str
) -> ProbeResult:
    key = f"{policies.settings.bucket.prefix}{probe.key(run)}"
    answer = await admin.attempt(probe.trial, key, probe.headers)
    outcome = _judge(policies, probe, refused=answer.refused)
    return ProbeResult(
        probe=probe, outcome=outcome, answer=f"{answer.status} {answer.code}".strip()
    )


async def try_probes(
    policies: PolicySet, open_role: OpenRole, run: str
) -> AsyncIterator[ProbeResult]:
    """Send every probe with its role's credentials, role by role.

    Args:
        policies: The rendered documents.
        open_role: Opens each role's session.
        run: The last part of every key of this run.

    Raises:
        StoreError: The store is unreachable.
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
                yield await _try(policies, probe, admin, run)


def verdicts_on(settings: Settings, target: Target, live: LiveDocuments) -> tuple[Verdict, ...]:
    """Prove the properties of the live documents; return none if a document is missing.

    Raises:
        UnsupportedPolicy: A live document contains an element that is not decided.
    """
    policies = live.policies(settings, target)
    return () if policies is None else prove(policies)


async def verify(
    settings: Settings, target: Target, admin: Administration, open_role: OpenRole, run: str
) -> Verification:
    """Read, compare and prove a live bucket and send probes; nothing is changed.

    Raises:
        StoreError: The store is unreachable or denies a read.
        UnsupportedPolicy: A live document contains an element that is not decided.
    """
    live = await read_live(settings, target, admin)
    rendered = policy_set(settings, target)
    return Verification(
        changes=changes(settings, target, live),
        misconfigurations=find_misconfigurations(settings, live),
        verdicts=verdicts_on(settings, target, live),
        tried=tuple([item async for item in try_probes(rendered, open_role, run)]),
    )
