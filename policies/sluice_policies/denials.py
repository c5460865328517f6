"""The protocol's requirements on a bucket, and the requests that must be denied. Pure.

A required denial is derived from a property: actions in a range of objects, for callers for which
the conditions of the property are not met. `prove_denials` finds the statements that deny it.

The tables of `docs/policies.md` are generated from here, and from the matrix and the documents. A
test checks that every statement, property and probe belongs to a requirement, and that every
requirement has statements and properties.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from sluice_policies.access_matrix import MATRIX, Verb
from sluice_policies.catalogue import ResourceType
from sluice_policies.configuration import RULES, ConfigurationPart
from sluice_policies.evaluate import (
    PRINCIPAL_ACCOUNT,
    PRINCIPAL_IS_SERVICE,
    account_of,
    condition_holds,
)
from sluice_policies.model import Condition, document_json, statements_of
from sluice_policies.policy_set import PolicySet
from sluice_policies.probes import PROBES
from sluice_policies.properties import CALLER, Property, PropertyCase, Sense, Ways
from sluice_policies.render import inexpressible
from sluice_policies.settings import RoleName, Target, bucket_arn
from sluice_protocol.errors import BadUsage

ANY_ROLE: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement.

    Attributes:
        statements: Sids of the bucket policy, with a trailing `*` for a group; `roles` means the
            identity policies.
        properties: Names, with a leading `*` for those of every role.
    """

    name: str
    description: str
    statements: tuple[str, ...]
    properties: tuple[str, ...]
    parts: tuple[ConfigurationPart, ...] = ()
    risk: str


REQUIREMENTS: Final = (
    Requirement(
        name="create-only",
        description="Under `accepted/` (and `quarantine/`, `decisions/`, `deletes/`, "
        "`promotions/`, `authority/`, `retention/`, `expired/`, `gc/v1/approvals/`) an object is "
        "written only with `If-None-Match: *`; "
        "requests without the header (parts, form posts, copies) are denied",
        statements=("CreateOnly",),
        properties=("accepted-created-once",),
        risk="two gateways accept different bytes under one identity, and the later write "
        "silently replaces the earlier one",
    ),
    Requirement(
        name="blobs-create-only",
        description="Optional: the same under `raw-blobs/` (`raw_blobs.require_if_none_match`)",
        statements=("CreateOnlyBlobs",),
        properties=("blobs-created-once",),
        risk="a faulty gateway could overwrite a blob with other bytes; the checksum shows it, "
        "and the earlier version is kept",
    ),
    Requirement(
        name="never-deleted",
        description="No principal deletes an object or version under `accepted/` or any other "
        "decision or evidence, not by replication either; nothing there is replaced, "
        "re-encrypted or exposed by ACL",
        statements=("NeverDeleted", "NeverHiddenOrReplaced", "NeverReencrypted"),
        properties=("accepted-never-deleted", "nothing-rewritten-in-place"),
        risk="an identity becomes available again and is accepted twice, or refused bytes and "
        "certificates are lost",
    ),
    Requirement(
        name="no-copy",
        description="Nothing is copied into `accepted/`, `raw-blobs/` or another prefix of records "
        "that are written once, as a whole or in parts",
        statements=("NoCopyInto", "NoMultipartInto"),
        properties=("no-copy-into-accepted-or-blobs", "no-multipart-into-accepted-or-blobs"),
        risk="objects exist that no gateway validated, without a checksum of all their bytes",
    ),
    Requirement(
        name="journals",
        description="Under `gateways/` an object is written only with `If-None-Match: *`, and only "
        "the reconciler role deletes it: no principal replaces a registration or a journal object",
        statements=("CreateOnlyJournals", "JournalsDeletedByReconcilerAlone"),
        properties=("journals-created-once", "journals-deleted-by-reconciler-alone"),
        risk="an answer claims to be complete through a time although acknowledged batches are "
        "missing",
    ),
    Requirement(
        name="gc-alone",
        description="Only the gc role deletes versions under `raw-blobs/`, and no principal puts a "
        "delete marker over a blob or a reference to one",
        statements=("BlobVersionsByGcAlone", "NeverHiddenOrReplaced"),
        properties=("blob-versions-deleted-by-gc-alone", "blobs-never-hidden"),
        parts=(ConfigurationPart.VERSIONING,),
        risk="the bytes of an acknowledged batch are lost",
    ),
    Requirement(
        name="separation",
        description="The gc role, which deletes blobs, writes nothing on which a deletion rests: "
        "no manifest, reference, certificate, evidence or approval, and deletes no reference; the "
        "certifier role writes certificates and deletes no blob",
        statements=("WritersOf*", "BlobVersionsByGcAlone", "ReferencesByReconcilerAlone"),
        properties=("deleter-certifies-nothing", "references-deleted-by-reconciler-alone"),
        risk="one stolen credential forges the certificate by which it deletes acknowledged bytes",
    ),
    Requirement(
        name="no-expiry",
        description=(
            "A lifecycle deletes only unfinished multipart uploads, and superseded versions and "
            "delete markers of derived data and state; it moves blobs only to classes that are "
            "read without a restore"
        ),
        statements=("ReconfiguredByDeployerAlone",),
        properties=("reconfigured-by-deployer-alone", *RULES),
        parts=(ConfigurationPart.LIFECYCLE,),
        risk="the store itself deletes accepted bytes: a lifecycle is not subject to any policy",
    ),
    Requirement(
        name="encryption",
        description=(
            "Objects are encrypted as configured: by the bucket's default if a request names no "
            "encryption, or with the same encryption and key in the request"
        ),
        statements=(
            *("NoOtherEncryption", "NoCustomerKeys", "NoOtherKey", "NoUnnamedKey"),
            "NeverReencrypted",
        ),
        properties=("encrypted-as-set",),
        parts=(ConfigurationPart.ENCRYPTION,),
        risk=(
            "objects cannot be read after a stray key was deleted, or can be read by more "
            "principals"
        ),
    ),
    Requirement(
        name="transport",
        description="Requests use TLS, and the VPC endpoint if one is configured",
        statements=("TlsOnly", "EndpointOnly"),
        properties=("tls-only", "endpoint-only"),
        risk=(
            "bytes can be read and modified in transit; stolen credentials can be used from "
            "anywhere"
        ),
    ),
    Requirement(
        name="own-prefixes",
        description="Each role has access to its own prefixes and verbs, and to nothing else",
        statements=("roles",),
        properties=("*-nothing-else",),
        risk="a fault in one component damages the data that another component relies on",
    ),
    Requirement(
        name="own-account",
        description="No principal of another account, no anonymous caller, and no AWS service "
        "acting for another account has access to the bucket, and no statement grants it",
        statements=("OwnAccountOnly", "ServicesOfOwnAccountOnly"),
        properties=("strangers-do-nothing", "strangers-granted-nothing"),
        parts=(ConfigurationPart.PUBLIC_ACCESS,),
        risk="another account reads, replaces or deletes objects with rights that no role has",
    ),
    Requirement(
        name="work",
        description="Each role can do its work, and no other caller is restricted",
        statements=("roles",),
        properties=("*-can-work", "rest-left-alone"),
        risk="a policy that denies everything would appear safe, and nothing would be accepted",
    ),
    Requirement(
        name="writers",
        description="Decisions, evidence, blobs and queues are written only by the roles that "
        "own them, even if another caller is an administrator of the account",
        statements=("WritersOf*",),
        properties=("written-by-writers-alone",),
        risk=(
            "a forged manifest is treated as an acceptance, and a forged reference releases a "
            "blob for deletion"
        ),
    ),
    Requirement(
        name="deployer-alone",
        description="Only the deployer changes policy, lifecycle, versioning, replication, lock "
        "and other configuration",
        statements=("ReconfiguredByDeployerAlone",),
        properties=("reconfigured-by-deployer-alone",),
        parts=(
            ConfigurationPart.OWNERSHIP,
            ConfigurationPart.PUBLIC_ACCESS,
            ConfigurationPart.NOTIFICATION,
            ConfigurationPart.VERSIONING,
        ),
        risk="a principal that can reconfigure the bucket can disable every other rule",
    ),
    Requirement(
        name="locks",
        description="No principal sets, extends or bypasses a lock on one object",
        statements=("NoLocksByHand",),
        properties=("locks-never-touched-by-hand",),
        parts=(ConfigurationPart.OBJECT_LOCK,),
        risk=(
            "a lock that can be bypassed protects nothing; one that is set by mistake blocks GC "
            "for years"
        ),
    ),
)
"""Every requirement, in the order of the table."""


def probes_of(requirement: Requirement) -> tuple[str, ...]:
    """Return the names of the probes that test a requirement."""
    return tuple(probe.name for probe in PROBES if requirement.name in probe.requirements)


def enforcing_statements(requirement: Requirement, policies: PolicySet) -> tuple[str, ...]:
    """Return the Sids that enforce a requirement."""
    found: list[str] = []
    sids = [statement.sid for statement in policies.bucket.statements]
    for name in requirement.statements:
        if name == "roles":
            found.append("the identity policy of each role")
        elif name.endswith(ANY_ROLE):
            found += [sid for sid in sids if sid.startswith(name[:-1])]
        else:
            found += [name]
    return tuple(found)


def property_names(requirement: Requirement) -> tuple[str, ...]:
    """Return the names of the properties that prove a requirement."""
    found: list[str] = []
    for name in requirement.properties:
        roles = [f"{role.value}{name[1:]}" for role in RoleName]
        found += roles if name.startswith(ANY_ROLE) else [name]
    return tuple(found)


BEGIN: Final = "<!-- generated by sluice_policies.denials: {name} -->"
END: Final = "<!-- end -->"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(name if " " in name else f"`{name}`" for name in names) or "-"


def _enforced(requirement: Requirement, policies: PolicySet) -> str:
    parts = tuple(f"{part.value}.json" for part in requirement.parts)
    return _code((*enforcing_statements(requirement, policies), *parts))


def requirements_table(policies: PolicySet) -> Iterator[str]:
    """Yield each requirement with its statements, properties, probes and risk."""
    yield _row("requirement", "enforced by", "proved by", "tested by", "risk")
    yield _row(*["---"] * 5)
    for item in REQUIREMENTS:
        yield _row(
            item.description,
            _enforced(item, policies),
            _code(item.properties),
            _code(probes_of(item)),
            item.risk,
        )


def roles_table() -> Iterator[str]:
    """Yield each role with its purpose and its prefixes."""
    verbs = tuple(Verb)
    yield _row("role", "purpose", *(verb.value for verb in verbs))
    yield _row(*["---"] * (2 + len(verbs)))
    for name, rights in MATRIX.items():
        cells = (" ".join(f"`{p}`" for p in rights.prefixes.get(verb, ())) or "-" for verb in verbs)
        yield _row(f"`{name.value}`", rights.purpose, *cells)


def statements_table(policies: PolicySet) -> Iterator[str]:
    """Yield each statement of the bucket policy with its reason."""
    yield _row("statement", "reason")
    yield _row("---", "---")
    for statement in policies.bucket.statements:
        yield _row(f"`{statement.sid}`", statement.reason)


def missing_table(policies: PolicySet) -> Iterator[str]:
    """Yield what a target cannot express."""
    yield _row("not expressible", "reason")
    yield _row("---", "---")
    for item in inexpressible(policies):
        yield _row(item.what, item.why)


def updated_page(text: str, tables: dict[str, str]) -> str:
    """Return a page with the table between each pair of marks replaced."""
    for name, table in tables.items():
        head, mark, rest = text.partition(BEGIN.format(name=name))
        _, _, tail = rest.partition(END)
        text = f"{head}{mark}\n{table}\n{END}{tail}" if mark else text
    return text


def tables(aws: PolicySet, versitygw: PolicySet) -> dict[str, str]:
    """Return every table by name."""
    return {
        "requirements": "\n".join(requirements_table(aws)),
        "roles": "\n".join(roles_table()),
        "statements": "\n".join(statements_table(aws)),
        "versitygw": "\n".join(missing_table(versitygw)),
    }


_NO_CALLER: Final = ""
"""The name of a caller without a role; it equals no ARN."""


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
        document: `bucket-policy`, or `role-NAME`.
        reason: Why it exists; empty if sluice does not render it.
    """

    sid: str
    document: str
    reason: str


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that must be denied, and how the documents deny them.

    Attributes:
        description: The property in one sentence.
        risk: The consequence if it is not denied.
        roles: The roles for which it is required.
        others: Whether it is required for every other caller, also for administrators.
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
    """Return the name of a role in a filter; an empty text is any."""
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
    """Callers for whom the same requests must be denied; with `others`, every other caller too.

    `unless` has the alternatives that they can meet; empty if every request must be denied.
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
    """Return the missing statements and documents that enforce a property."""
    requirement = requirement_of(item)
    enforcing = () if requirement is None else enforcing_statements(requirement, rendered)
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
