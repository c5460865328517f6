"""What the protocol requires of a bucket, and where each requirement is enforced, proved and tried.

`docs/policies.md` draws its table from here, and a test holds every statement, property and probe
against it: none may be without a requirement, and no requirement without all three.
"""

from dataclasses import dataclass
from typing import Final

from sluice_policies.configuration import ConfigurationPart
from sluice_policies.policy_set import PolicySet
from sluice_policies.probes import PROBES
from sluice_policies.settings import RoleName

ANY_ROLE: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement.

    Attributes:
        name: Its short name; probes name it in `tries`.
        says: What is required.
        statements: Sids of the bucket policy, a trailing `*` for a family; `roles` for identities.
        properties: Names of properties, a leading `*` for each role's.
        parts: Parts of the configuration that take part in it.
        risk: What goes wrong without it.
    """

    name: str
    says: str
    statements: tuple[str, ...]
    properties: tuple[str, ...]
    parts: tuple[ConfigurationPart, ...] = ()
    risk: str


REQUIREMENTS: Final = (
    Requirement(
        name="create-only",
        says="Under `accepted/` (and `quarantine/`, `decisions/`, `deletes/`, `authority/`) an"
        " object is written only with `If-None-Match: *`; what sends no such header (parts, form"
        " posts, copies) is refused",
        statements=("CreateOnly",),
        properties=("accepted-created-once",),
        risk="two gateways accept different bytes under one identity, and the later one wins"
        " without a trace",
    ),
    Requirement(
        name="blobs-create-only",
        says="Optional: the same under `raw-blobs/` (`raw_blobs.require_if_none_match`)",
        statements=("CreateOnlyBlobs",),
        properties=("blobs-created-once",),
        risk="a gateway with a fault could write other bytes over a blob; their checksum tells, and"
        " versions keep the right ones",
    ),
    Requirement(
        name="never-deleted",
        says="Nobody deletes an object or version under `accepted/` or any other decision or"
        " evidence, nor does replication; nothing there is replaced, re-encrypted or opened by ACL",
        statements=("NeverDeleted", "NeverHiddenOrReplaced"),
        properties=("accepted-never-deleted", "nothing-rewritten-in-place"),
        risk="an identity is open again and is accepted twice, or GC takes a blob whose reference"
        " was removed",
    ),
    Requirement(
        name="no-copy",
        says="Nothing is copied into `accepted/` or `raw-blobs/`, whole or in parts",
        statements=("NoCopyInto", "NoMultipartInto"),
        properties=("no-copy-into-accepted-or-blobs", "no-multipart-into-accepted-or-blobs"),
        risk="bytes stand there that no gateway validated, without a checksum over all of them",
    ),
    Requirement(
        name="gc-alone",
        says="Versions under `raw-blobs/` are deleted by the gc role alone, and nobody puts a"
        " delete marker over a blob",
        statements=("BlobVersionsByGcAlone", "NeverHiddenOrReplaced"),
        properties=("blob-versions-deleted-by-gc-alone", "blobs-never-hidden"),
        parts=(ConfigurationPart.VERSIONING,),
        risk="a batch that was answered 200 has no bytes any more",
    ),
    Requirement(
        name="no-expiry",
        says="No lifecycle expires anything there; only unfinished multipart uploads are cleared",
        statements=("ReconfiguredByDeployerAlone",),
        properties=("reconfigured-by-deployer-alone",),
        parts=(ConfigurationPart.LIFECYCLE,),
        risk="the store itself deletes accepted bytes: no policy is asked",
    ),
    Requirement(
        name="encryption",
        says="Objects are encrypted as set: the bucket's default, or the very same named",
        statements=("NoOtherEncryption", "NoCustomerKeys", "NoOtherKey"),
        properties=("encrypted-as-set",),
        parts=(ConfigurationPart.ENCRYPTION,),
        risk="objects that nobody can read once a stray key is gone, or that more people can read",
    ),
    Requirement(
        name="transport",
        says="Requests come by TLS, and through the VPC endpoint where one is set",
        statements=("TlsOnly", "EndpointOnly"),
        properties=("tls-only", "endpoint-only"),
        risk="bytes can be read and changed on their way; stolen credentials work from anywhere",
    ),
    Requirement(
        name="own-prefixes",
        says="Each role has its own prefixes and verbs, and nothing else",
        statements=("roles",),
        properties=("*-nothing-else", "strangers-do-nothing"),
        risk="a fault in one part damages what another part rests on",
    ),
    Requirement(
        name="work",
        says="Each role can do its work, and nobody else is hindered",
        statements=("roles",),
        properties=("*-can-work", "rest-left-alone"),
        risk="a policy that denies everything would look safe, and nothing would be accepted",
    ),
    Requirement(
        name="writers",
        says="Decisions, evidence, blobs and queues are written by the roles that own them, whoever"
        " else is an administrator of the account",
        statements=("WritersOf*",),
        properties=("written-by-writers-alone",),
        risk="a forged manifest is taken for an acceptance, a forged reference frees a blob",
    ),
    Requirement(
        name="deployer-alone",
        says="Policy, lifecycle, versioning, replication, lock and the rest are changed by the"
        " deployer alone",
        statements=("ReconfiguredByDeployerAlone",),
        properties=("reconfigured-by-deployer-alone",),
        parts=(
            ConfigurationPart.OWNERSHIP,
            ConfigurationPart.PUBLIC_ACCESS,
            ConfigurationPart.NOTIFICATION,
            ConfigurationPart.VERSIONING,
        ),
        risk="whoever reconfigures the bucket undoes every other rule",
    ),
    Requirement(
        name="locks",
        says="Nobody breaks, lengthens or sets a lock on one object",
        statements=("NoLocksByHand",),
        properties=("locks-never-touched-by-hand",),
        parts=(ConfigurationPart.OBJECT_LOCK,),
        risk="a lock that can be bypassed keeps nothing; one set by mistake stops GC for years",
    ),
)
"""Every requirement, in the order of the table."""


def probes_of(requirement: Requirement) -> tuple[str, ...]:
    """Gives the probes that try a requirement."""
    return tuple(probe.name for probe in PROBES if requirement.name in probe.tries)


def statements_of(requirement: Requirement, policies: PolicySet) -> tuple[str, ...]:
    """Gives the Sids of the documents that enforce a requirement."""
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
    """Gives the names of the properties that prove a requirement."""
    found: list[str] = []
    for name in requirement.properties:
        roles = [f"{role.value}{name[1:]}" for role in RoleName]
        found += roles if name.startswith(ANY_ROLE) else [name]
    return tuple(found)
