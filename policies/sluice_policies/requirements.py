"""The protocol's requirements on a bucket, and how each is enforced, proved and tested.

The tables of `docs/policies.md` are generated from here, and from the matrix and the documents. A
test checks that every statement, property and probe belongs to a requirement, and that every
requirement has statements and properties.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice_policies.access_matrix import MATRIX, Verb
from sluice_policies.configuration import ConfigurationPart
from sluice_policies.lifecycle import RULES
from sluice_policies.policy_set import PolicySet
from sluice_policies.probes import PROBES
from sluice_policies.render import inexpressible
from sluice_policies.settings import RoleName

ANY_ROLE: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement.

    Attributes:
        name: Its short name; probes refer to it.
        description: The requirement in one sentence.
        statements: Sids of the bucket policy, with a trailing `*` for a group; `roles` means the
            identity policies.
        properties: Names of properties, with a leading `*` for those of every role.
        parts: Parts of the configuration that contribute to it.
        risk: The consequence of a violation.
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
        "`authority/`, `gc/v1/approvals/`) an object is written only with `If-None-Match: *`; "
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
        risk="an identity becomes available again and is accepted twice, or GC deletes a blob "
        "whose reference was removed",
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
        "delete marker over a blob",
        statements=("BlobVersionsByGcAlone", "NeverHiddenOrReplaced"),
        properties=("blob-versions-deleted-by-gc-alone", "blobs-never-hidden"),
        parts=(ConfigurationPart.VERSIONING,),
        risk="the bytes of an acknowledged batch are lost",
    ),
    Requirement(
        name="separation",
        description="The gc role, which deletes blobs, writes nothing on which a deletion rests: "
        "no manifest, reference, certificate, evidence or approval; the certifier role writes "
        "certificates and deletes no blob",
        statements=("WritersOf*", "BlobVersionsByGcAlone"),
        properties=("deleter-certifies-nothing",),
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


def statements_of(requirement: Requirement, policies: PolicySet) -> tuple[str, ...]:
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


BEGIN: Final = "<!-- generated by sluice_policies.requirements: {name} -->"
END: Final = "<!-- end -->"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(name if " " in name else f"`{name}`" for name in names) or "-"


def _enforced(requirement: Requirement, policies: PolicySet) -> str:
    parts = tuple(f"{part.value}.json" for part in requirement.parts)
    return _code((*statements_of(requirement, policies), *parts))


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
