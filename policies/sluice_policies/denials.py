"""The requests that the protocol requires to be denied, and how each is denied. Pure.

A required denial is derived from a property: actions in a range of objects, for callers for which
the conditions of the property are not met. `prove_denials` finds the statements that deny it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from sluice_policies.catalogue import ResourceType
from sluice_policies.evaluate import (
    PRINCIPAL_ACCOUNT,
    PRINCIPAL_IS_SERVICE,
    account_of,
    condition_holds,
)
from sluice_policies.model import Condition, document_json, statements_of
from sluice_policies.policy_set import PolicySet
from sluice_policies.properties import CALLER, Property, PropertyCase, Sense, Ways
from sluice_policies.requirements import REQUIREMENTS, Requirement, property_names
from sluice_policies.requirements import statements_of as required_statements
from sluice_policies.settings import RoleName, Target, bucket_arn
from sluice_protocol.errors import BadUsage

_NO_CALLER: Final = ""
"""The name of a caller that is none of the roles: no ARN is equal to it."""


class DenialOutcome(StrEnum):
    """Whether the documents deny every request of a required denial."""

    DENIED = "denied"
    ALLOWED = "allowed"
    UNDECIDED = "undecided"


class DenialGround(StrEnum):
    """Why no request of a denial is allowed.

    Members:
        STATEMENT: Every request matches a denying statement.
        NOTHING_ALLOWS: No statement allows any of them, and what nothing allows is denied.
        BOTH: Every request that a statement allows matches a denying one.
        NONE: It is not denied, or not decided.
    """

    STATEMENT = "statement"
    NOTHING_ALLOWS = "nothing-allows"
    BOTH = "both"
    NONE = "none"


class DenyingStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of a document.

    Attributes:
        sid: Its name.
        document: `bucket-policy`, or `role-NAME`.
        reason: Why it exists; empty if sluice does not render it.
    """

    sid: str
    document: str
    reason: str


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that must be denied, and how the documents deny them.

    Attributes:
        requirement: The requirement of the protocol, by name.
        property: The property that requires it.
        description: The property in one sentence.
        risk: The consequence if it is not denied.
        roles: The roles for which it is required.
        others: Whether it is required for every other caller, also for administrators.
        actions: The actions.
        resources: Patterns of the objects; the ARN of the bucket for actions on it.
        outside: Whether it covers every object that `resources` does not match.
        unless: Alternatives: a request that meets all conditions of one of them may be allowed.
            Empty if every request is denied.
        outcome: Whether every such request is denied.
        ground: Why.
        statements: The statements that deny it, none of which can be left out.
        missing: Rendered statements of the requirement that are missing or changed.
        allowed_by: The statement that allows the example; empty if everything is denied.
        example: A request that is allowed, or why the solver cannot decide; otherwise empty.
        proof: The proof in one or two sentences.
    """

    requirement: str
    property: str
    description: str
    risk: str
    roles: tuple[str, ...]
    others: bool
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    outside: bool
    unless: tuple[tuple[str, ...], ...]
    outcome: DenialOutcome
    ground: DenialGround
    statements: tuple[DenyingStatement, ...]
    missing: tuple[str, ...]
    allowed_by: str
    example: str
    proof: str


class DenialReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every required denial of a deployment.

    Attributes:
        denials: The denials, those that are not denied first.
        denied: How many are denied.
        allowed: How many are not denied.
        undecided: How many the solver could not decide.
    """

    denials: tuple[Denial, ...]
    denied: int
    allowed: int
    undecided: int

    def matching(self, role: str, action: str) -> "DenialReport":
        """Return the denials of a role and an action; an empty text is any.

        The role `other` is every caller without a role. The name of an action may be without `s3:`.
        """
        wanted = action.lower() if ":" in action or not action else f"s3:{action.lower()}"
        return make_report(
            tuple(
                one
                for one in self.denials
                if (not role or role in one.roles or (role == OTHER_CALLERS and one.others))
                and (not wanted or wanted in {name.lower() for name in one.actions})
            )
        )


OTHER_CALLERS: Final = "other"
"""The name of every caller without a role, in filters."""


def check_role(name: str) -> str:
    """Return the name of a role in a filter; an empty text is any.

    Raises:
        BadUsage: It is not a role.
    """
    names = ("", *RoleName, OTHER_CALLERS)
    if name not in names:
        raise BadUsage(f"no such role: use one of {', '.join(names[1:])}, role=`{name[:40]}`")
    return name


def make_report(denials: tuple[Denial, ...]) -> DenialReport:
    """Return a report, in which what is not denied comes first."""
    order = (DenialOutcome.ALLOWED, DenialOutcome.UNDECIDED, DenialOutcome.DENIED)
    outcomes = [one.outcome for one in denials]
    return DenialReport(
        denials=tuple(sorted(denials, key=lambda one: order.index(one.outcome))),
        denied=outcomes.count(DenialOutcome.DENIED),
        allowed=outcomes.count(DenialOutcome.ALLOWED),
        undecided=outcomes.count(DenialOutcome.UNDECIDED),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedCallers:
    """Callers for whom the same requests must be denied.

    Attributes:
        roles: The roles.
        others: Whether every other caller is one of them.
        unless: The alternatives that they can meet; empty if every request must be denied.
    """

    roles: tuple[RoleName, ...]
    others: bool
    unless: Ways


def required_denials(
    policies: PolicySet, properties: tuple[Property, ...]
) -> Iterator[tuple[Property, PropertyCase]]:
    """Yield the cases of the properties that require a denial."""
    for item in properties:
        if item.sense is Sense.ONLY_IF:
            for case in item.cases:
                if case.actions and denied_callers(policies, case):
                    yield item, case


def denied_callers(policies: PolicySet, case: PropertyCase) -> tuple[DeniedCallers, ...]:
    """Return for whom a case requires a denial, grouped by the conditions that they can meet."""
    ways: Ways = ()
    if case.conditions is not None:
        ways = tuple((*case.conditions, *way) for way in case.ways or ((),))
    if case.role is not None:
        return (DeniedCallers(roles=(case.role,), others=False, unless=ways),)
    groups: dict[Ways, list[RoleName | None]] = {}
    for name in (*RoleName, None):
        left = _possible(policies, ways, name)
        if () not in left:  # otherwise the caller itself meets every condition
            groups.setdefault(left, []).append(name)
    return tuple(
        DeniedCallers(
            roles=tuple(one for one in names if one is not None), others=None in names, unless=left
        )
        for left, names in groups.items()
    )


def _possible(policies: PolicySet, ways: Ways, name: RoleName | None) -> Ways:
    """Return the alternatives that a caller can meet, without the conditions on the caller."""
    known = {CALLER: _NO_CALLER}
    if name is not None:
        known[CALLER] = policies.principal_of(name)
        if policies.target is Target.AWS:
            known[PRINCIPAL_ACCOUNT] = account_of(known[CALLER])
            known[PRINCIPAL_IS_SERVICE] = "false"
    left = []
    for way in ways:
        decided = [one for one in way if one.key.lower() in known]
        if all(condition_holds(one, known[one.key.lower()]) for one in decided):
            left.append(tuple(one for one in way if one not in decided))
    return tuple(left)


_WORDS: Final = {
    "StringEquals": "is",
    "StringNotEquals": "is not",
    "StringLike": "matches",
    "StringNotLike": "does not match",
    "Bool": "is",
}


def describe_condition(condition: Condition) -> str:
    """Return a condition as words."""
    key = condition.key
    if condition.operator == "Null":
        return f"{key} is {'absent' if 'true' in condition.values else 'sent'}"
    plain = condition.operator.removesuffix("IfExists")
    absent = "absent, or " if plain != condition.operator else ""
    some = " or ".join(condition.values)
    return f"{key} {f'is {absent}it ' if absent else ''}{_WORDS.get(plain, plain)} {some}"


def resources_of(
    policies: PolicySet, case: PropertyCase, resource_type: ResourceType
) -> tuple[str, ...]:
    """Return the objects of a case without the ARN before their keys, or the bucket or key."""
    whole = bucket_arn(policies.settings)
    match resource_type:
        case ResourceType.OBJECT:
            return tuple(one.removeprefix(f"{whole}/") for one in case.where) or ("*",)
        case ResourceType.BUCKET:
            return (whole,)
        case ResourceType.KEY:
            return (policies.settings.encryption.kms_key or "every key",)


def requirement_of(item: Property) -> Requirement | None:
    """Return the requirement that a property proves."""
    found = (one for one in REQUIREMENTS if item.name in property_names(one))
    return next(found, None)


def missing_statements(policies: PolicySet, rendered: PolicySet) -> frozenset[str]:
    """Return the statements and policies of roles that are missing or changed in documents."""
    live = statements_of(document_json(policies.bucket), "bucket-policy")
    wanted = statements_of(document_json(rendered.bucket), "bucket-policy")
    pairs = zip(rendered.bucket.statements, wanted, strict=True)
    changed = {statement.sid for statement, json in pairs if json not in live}
    for name, document in rendered.identities.items():
        found = policies.identities.get(name)
        if found is None or document_json(found) != document_json(document):
            changed.add(f"role-{name.value}")
    return frozenset(changed)


def missing_of(
    item: Property, case: PropertyCase, missing: frozenset[str], rendered: PolicySet
) -> tuple[str, ...]:
    """Return those of the missing statements and documents that enforce a property."""
    requirement = requirement_of(item)
    enforcing = () if requirement is None else required_statements(requirement, rendered)
    own = () if case.role is None else (f"role-{case.role.value}",)
    return tuple(name for name in dict.fromkeys((*enforcing, *own)) if name in missing)


def describe_proof(ground: DenialGround, sids: tuple[str, ...], case: PropertyCase) -> str:
    """Return why no request of a denial is allowed."""
    names = " or ".join(sids)
    whom = "every caller, key and header" if case.role is None else "every key and header"
    match ground:
        case DenialGround.STATEMENT:
            return (
                f"Proved for {whom}: each such request matches {names}. A denying statement"
                " overrides every allow, also those of an administrator."
            )
        case DenialGround.NOTHING_ALLOWS:
            return (
                f"Proved for {whom}: no statement of the bucket policy or of the policy of the role"
                " allows it, and what nothing allows is denied. Another policy of the role could"
                " allow it."
            )
        case DenialGround.BOTH:
            return (
                f"Proved for {whom}: each such request that a statement allows also matches"
                f" {names}, and a denying statement overrides every allow."
            )
        case DenialGround.NONE:
            return ""


_ACTIONS_SHOWN: Final = 3


def describe_denial(denial: Denial) -> str:
    """Return the requests of a denial on one line."""
    who = list(denial.roles)
    if len(who) == len(RoleName) and denial.others:
        who = ["every caller"]
    elif denial.others:
        who.append("every other caller")
    actions = list(denial.actions[:_ACTIONS_SHOWN])
    if len(denial.actions) > _ACTIONS_SHOWN:
        actions.append(f"{len(denial.actions) - _ACTIONS_SHOWN} more")
    where = f"{'outside ' if denial.outside else ''}{', '.join(denial.resources)}"
    unless = " or ".join(" and ".join(way) for way in denial.unless)
    condition = f", unless {unless}" if unless else ""
    return f"{', '.join(who)}: {', '.join(actions)} on {where}{condition} ({denial.property})"
