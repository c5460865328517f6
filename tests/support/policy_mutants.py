"""Documents with one fault each, which the properties must detect.

A prover that never reports a violation proves nothing. Every mutant must violate a property, or
decide every request exactly as the original does (`equivalent`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import z3

from sluice_policies.catalogue import bucket_actions, catalogue, key_actions, object_actions
from sluice_policies.denials import REQUIREMENTS, Requirement, enforcing_statements
from sluice_policies.model import EVERYONE, Condition, Document, PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet
from sluice_policies.properties import CALLER, Property
from sluice_policies.prove import Prover, Verdict, allowed, pattern_table_for, relevant
from sluice_policies.settings import RoleName, Target, bucket_arn, objects_arns
from sluice_policies.symbolic import Pattern
from sluice_protocol import keys

_OPPOSITES = {
    "StringEquals": "StringNotEquals",
    "StringNotEquals": "StringEquals",
    "StringLike": "StringNotLike",
    "StringNotLike": "StringLike",
    "StringLikeIfExists": "StringNotLike",
}
_OTHER_ACCOUNT = "444455556666"
_OTHER_TRUTH = {"true": "false", "false": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A set of documents with one fault.

    Attributes:
        name: The document, the statement and the change.
        policies: The documents.
        role: The role whose policy was changed; None for the bucket policy.
    """

    name: str
    policies: PolicySet
    role: RoleName | None


def _flipped(condition: Condition) -> Condition:
    opposite = _OPPOSITES.get(condition.operator)
    if opposite is not None:
        return replace(condition, operator=opposite)
    return replace(condition, values=tuple(_OTHER_TRUTH[v] for v in condition.values))


def _without(values: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    if len(values) > 1:
        for index, value in enumerate(values):
            yield value, (*values[:index], *values[index + 1 :])


def _swapped(values: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _resource_mutants(statement: PolicyStatement) -> Iterator[tuple[str, PolicyStatement]]:
    for gone, kept in _without(statement.resources):
        yield f"drops resource {gone}", replace(statement, resources=kept)
    for index, glob in enumerate(statement.resources):
        if not glob.endswith("/*"):
            continue
        wide, narrow = f"{glob[:-2].rpartition('/')[0]}/*", f"{glob[:-1]}0*"
        for does, other in (("widens", wide), ("narrows", narrow)):
            resources = _swapped(statement.resources, index, other)
            yield f"{does} {glob} to {other}", replace(statement, resources=resources)


def _condition_mutants(statement: PolicyStatement) -> Iterator[tuple[str, PolicyStatement]]:
    conditions = statement.conditions
    for index, condition in enumerate(conditions):
        rest = (*conditions[:index], *conditions[index + 1 :])
        name = f"{condition.operator} {condition.key}"
        yield f"drops {name}", replace(statement, conditions=rest)
        changed = [(f"flips {name}", _flipped(condition))]
        if condition.operator.endswith("IfExists"):
            strict = condition.operator.removesuffix("IfExists")
            changed.append((f"requires {condition.key}", replace(condition, operator=strict)))
        for gone, kept in _without(condition.values):
            changed.append((f"drops {gone} of {name}", replace(condition, values=kept)))
        for does, other in changed:
            swapped = (*conditions[:index], other, *conditions[index + 1 :])
            yield does, replace(statement, conditions=swapped)


def _statement_mutants(statement: PolicyStatement) -> Iterator[tuple[str, PolicyStatement]]:
    for gone, kept in _without(statement.actions):
        yield f"drops action {gone}", replace(statement, actions=kept)
    other = PolicyEffect.ALLOW if statement.effect is PolicyEffect.DENY else PolicyEffect.DENY
    yield f"becomes {other.value}", replace(statement, effect=other)
    if statement.principals is not None and statement.principals != EVERYONE:
        yield "is for everyone", replace(statement, principals=EVERYONE)
        for gone, kept in _without(statement.principals):
            yield f"drops principal {gone}", replace(statement, principals=kept)
    yield from _resource_mutants(statement)
    yield from _condition_mutants(statement)


def _document_mutants(document: Document) -> Iterator[tuple[str, Document]]:
    for index, statement in enumerate(document.statements):
        yield f"{statement.sid} is dropped", document.replaced(index)
        for does, wrong in _statement_mutants(statement):
            yield f"{statement.sid} {does}", document.replaced(index, wrong)


def _allow(sid: str, **changes: Any) -> PolicyStatement:
    return PolicyStatement(sid=sid, effect=PolicyEffect.ALLOW, **changes)


def foreign_grants(policies: PolicySet) -> Iterator[PolicyStatement]:
    """Yield grants to callers outside the account, each of which is a hole if it is appended."""
    bucket = bucket_arn(policies.settings)
    own = policies.settings.bucket.account
    everything, lake = (f"{bucket}/*",), objects_arns(policies.settings, (keys.LAKE,))
    reader = {"actions": ("s3:GetObject",), "resources": everything}
    role = (f"arn:aws:iam::{_OTHER_ACCOUNT}:role/partner",)
    deletes = ("s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion")
    service = ("s3.amazonaws.com",)

    def of(operator: str, key: str, *values: str) -> tuple[Condition, ...]:
        return (Condition(operator=operator, key=key, values=values),)

    yield _allow("ForeignList", principals=role, actions=("s3:ListBucket",), resources=(bucket,))
    yield _allow("ForeignGet", principals=role, **reader)
    yield _allow("ForeignLake", principals=role, actions=deletes, resources=lake)
    for name in (_OTHER_ACCOUNT, f"arn:aws:iam::{_OTHER_ACCOUNT}:root"):
        yield _allow("ForeignAccount", principals=(name,), **reader)
    yield _allow("Anyone", principals=EVERYONE, **reader)
    tls = of("Bool", "aws:SecureTransport", "true")
    yield _allow("AnyoneWithTls", principals=EVERYONE, conditions=tls, **reader)
    other = of("StringEquals", "aws:PrincipalAccount", _OTHER_ACCOUNT)
    yield _allow("AnyoneOfOther", principals=EVERYONE, conditions=other, **reader)
    for sid, conditions in (
        ("Service", ()),
        ("ServiceForOther", of("StringEquals", "aws:SourceAccount", own, _OTHER_ACCOUNT)),
        ("ServiceIfExists", of("StringEqualsIfExists", "aws:SourceAccount", own)),
        ("ServiceByArn", of("StringLike", "aws:SourceArn", "arn:aws:s3:::*")),
    ):
        yield _allow(sid, principals=(), services=service, conditions=conditions, **reader)


def appended(policies: PolicySet, statement: PolicyStatement) -> PolicySet:
    """Return the documents with a statement appended to the bucket policy."""
    return policies.with_bucket(Document(statements=(*policies.bucket.statements, statement)))


def negations(policies: PolicySet) -> Iterator[tuple[Requirement, PolicySet]]:
    """Yield, for each requirement, documents in which nothing enforces it."""
    grant = _allow("All", actions=("s3:*",), resources=("*",))
    wall = PolicyStatement(
        sid="Wall",
        effect=PolicyEffect.DENY,
        principals=EVERYONE,
        actions=("s3:*",),
        resources=("*",),
    )
    for item in REQUIREMENTS:
        gone = set(enforcing_statements(item, policies))
        if item.name == "own-prefixes":
            document = Document(statements=(grant,))
            yield item, replace(policies, identities=dict.fromkeys(RoleName, document))
        elif item.name == "work":
            yield item, appended(policies, wall)
        else:
            kept = tuple(s for s in policies.bucket.statements if s.sid not in gone)
            yield item, policies.with_bucket(Document(statements=kept))


def mutants(policies: PolicySet) -> Iterator[Mutant]:
    """Yield every mutant of every document."""
    for grant in foreign_grants(policies) if policies.target is Target.AWS else ():
        wrong = appended(policies, grant)
        yield Mutant(name=f"bucket: {grant.sid} is appended", policies=wrong, role=None)
    for item, wrong in negations(policies) if policies.target is Target.AWS else ():
        if wrong != policies:
            name = f"requirement {item.name} is negated"
            yield Mutant(name=name, policies=wrong, role=None)
    for name, document in _document_mutants(policies.bucket):
        yield Mutant(name=f"bucket: {name}", policies=policies.with_bucket(document), role=None)
    for role, identity in policies.identities.items():
        for name, document in _document_mutants(identity):
            wrong = policies.with_identity(role, document)
            yield Mutant(name=f"{role.value}: {name}", policies=wrong, role=role)


def caught_by(prover: Prover, mutant: Mutant, properties: tuple[Property, ...]) -> Verdict | None:
    """Return the verdict of the first violated property, or None if none is violated."""
    role = "" if mutant.role is None else f"{mutant.role.value}-"
    for item in sorted(properties, key=lambda item: not item.name.startswith(role)):
        verdict = prover.check(mutant.policies, item)
        if not verdict.holds:
            return verdict
    return None


def _differs(one: PolicySet, two: PolicySet, action: str, role: RoleName | None) -> bool:
    before, after = relevant(one, action, role), relevant(two, action, role)
    if before == after:
        return False
    patterns = pattern_table_for(one.settings, one.target)
    for statement in (*before.denies, *before.allows, *after.denies, *after.allows):
        patterns.add_statement(statement)
    if role is not None:
        patterns.add(CALLER, Pattern(one.principal_of(role), exact=True))
    symbolic = patterns.symbolic_request(catalogue().actions[action.lower()].resource_type)
    solver = z3.Solver()
    solver.add(symbolic.domain)
    if role is not None:
        solver.add(symbolic.caller_is(one.principal_of(role)))
    worst = role is None
    solver.add(allowed(before, symbolic, worst=worst) != allowed(after, symbolic, worst=worst))
    return bool(solver.check() != z3.unsat)


def equivalent(one: PolicySet, two: PolicySet) -> bool:
    """Return True if both sets decide every request to the bucket in the same way."""
    actions = (*object_actions(), *bucket_actions(), *key_actions())
    roles = (None, *RoleName) if one.identities or two.identities else (None,)
    return not any(_differs(one, two, action, role) for action in actions for role in roles)
