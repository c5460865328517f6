"""The live documents of a bucket: reading, comparing, and applying in a safe order.

Versioning is enabled before anything else changes, roles get their rights before the bucket
denies, and the bucket policy comes last. All documents are read back after they were written.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice_policies.configuration import ConfigurationPart
from sluice_policies.errors import NotApplied
from sluice_policies.model import (
    Document,
    Json,
    canonical_json,
    compact_json,
    document_json,
    load_json,
    parse_document,
)
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.render import BUCKET_POLICY, SUPPORTED_PARTS, supported_configuration
from sluice_policies.settings import RoleName, Settings, Target
from sluice_store.administration import Administration, Value, open_administration
from sluice_store.s3.settings import S3Settings

REPLICATION = "replication"


def _parsed(text: str | None, where: str) -> Document:
    return Document(statements=()) if text is None else parse_document(text, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveDocuments:
    """The documents that are in the store now; None for each that is missing.

    `parts` has each part of the configuration that the target supports.
    """

    bucket_policy: str | None
    roles: dict[RoleName, str | None]
    parts: dict[ConfigurationPart, Json]
    replication: Json = None

    def policies(self, settings: Settings, target: Target) -> PolicySet | None:
        """Return the live documents as a policy set, or None if one is missing."""
        if self.bucket_policy is None or None in self.roles.values():
            return None
        return self.effective_policies(settings, target)

    def effective_policies(self, settings: Settings, target: Target) -> PolicySet:
        """Return the live documents as a policy set; a missing document has no statement."""
        return PolicySet(
            settings=settings,
            target=target,
            bucket=_parsed(self.bucket_policy, BUCKET_POLICY),
            identities={
                name: _parsed(text, f"role-{name.value}") for name, text in self.roles.items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChange:
    """One document whose live text differs from the rendered text; both are canonical.

    The live text is empty if there is none.
    """

    name: str
    live: str
    wanted: str

    def unified(self) -> str:
        """Return the difference in the format of `diff -u`."""
        lines = difflib.unified_diff(
            self.live.splitlines(keepends=True),
            self.wanted.splitlines(keepends=True),
            f"live/{self.name}",
            f"rendered/{self.name}",
        )
        return "".join(lines)


def role_name(settings: Settings, name: RoleName) -> str:
    """Return the name of the IAM role that a role of sluice is bound to."""
    return settings.role(name).arn.rpartition("/")[2]


def inline_name(name: RoleName) -> str:
    """Return the name of the inline policy that sluice manages on a role."""
    return f"sluice-{name.value}"


async def read_live(settings: Settings, target: Target, admin: Administration) -> LiveDocuments:
    """Read every document that is rendered for a target."""
    policy = await admin.read(BUCKET_POLICY)
    roles: dict[RoleName, str | None] = {}
    if target is Target.AWS:
        for name in RoleName:
            where = role_name(settings, name)
            roles[name] = await admin.read_role_policy(where, inline_name(name))
    parts = {
        part: await admin.read(part.value)
        for part in ConfigurationPart
        if part in SUPPORTED_PARTS[target]
    }
    replication = await admin.read(REPLICATION) if target is Target.AWS else None
    text = policy if isinstance(policy, str) else None
    return LiveDocuments(bucket_policy=text, roles=roles, parts=parts, replication=replication)


def _same_case(value: Json) -> Json:
    """Return a value in the form that is compared: S3 capitalises the names of filters."""
    if isinstance(value, Mapping):
        found = {name: _same_case(item) for name, item in value.items()}
        if set(found) == {"Name", "Value"}:
            found["Name"] = str(found["Name"]).lower()
        return found
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_same_case(item) for item in value]
    return value


def _policy_text(text: str | None, where: str) -> str:
    if text is None:
        return ""
    loaded = load_json(text, where)
    try:
        return canonical_json(document_json(parse_document(text, where)))
    except Exception:  # noqa: BLE001 - a document that cannot be parsed is shown unchanged
        return canonical_json(loaded)


def _pairs(settings: Settings, target: Target, live: LiveDocuments) -> dict[str, tuple[str, str]]:
    policies = policy_set(settings, target)
    found: dict[str, tuple[str, str]] = {}
    for part, wanted in supported_configuration(settings, target).items():
        stands = live.parts.get(part)
        now = "" if stands is None else canonical_json(_same_case(stands))
        found[part.value] = (now, canonical_json(_same_case(wanted)))
    for name, document in policies.identities.items():
        text = _policy_text(live.roles.get(name), name.value)
        found[f"role-{name.value}"] = (text, canonical_json(document_json(document)))
    bucket = canonical_json(document_json(policies.bucket))
    found[BUCKET_POLICY] = (_policy_text(live.bucket_policy, BUCKET_POLICY), bucket)
    return found


def changes(settings: Settings, target: Target, live: LiveDocuments) -> tuple[DocumentChange, ...]:
    """Return every document that differs from the rendered one, in the order of applying."""
    return tuple(
        DocumentChange(name=name, live=now, wanted=wanted)
        for name, (now, wanted) in _pairs(settings, target, live).items()
        if now != wanted
    )


def bucket_of(settings: Settings) -> S3Settings:
    """Return the bucket; its server, credentials and authorities are those of the AWS environment.

    An administrator names them in `AWS_ENDPOINT_URL_S3`, `AWS_PROFILE` and `AWS_CA_BUNDLE`.
    """
    return S3Settings(bucket=settings.bucket.name, region=settings.bucket.region)


async def read_changes(settings: Settings) -> tuple[DocumentChange, ...]:
    """Open the bucket and return every document that differs from the rendered one."""
    target = settings.target
    async with open_administration(bucket_of(settings)) as admin:
        return changes(settings, target, await read_live(settings, target, admin))


async def read_effective_policies(settings: Settings) -> PolicySet:
    """Open the bucket, as the auditor, and return the documents that decide about its requests."""
    where = replace(bucket_of(settings), profile=settings.role(RoleName.AUDITOR).profile or None)
    async with open_administration(where) as admin:
        live = await read_live(settings, settings.target, admin)
    return live.effective_policies(settings, settings.target)


async def _write(settings: Settings, admin: Administration, change: DocumentChange) -> None:
    policy = change.name == BUCKET_POLICY or change.name.startswith("role-")
    loaded = load_json(change.wanted, change.name)
    if change.name.startswith("role-"):
        name = RoleName(change.name.removeprefix("role-"))
        where = role_name(settings, name)
        await admin.write_role_policy(where, inline_name(name), compact_json(loaded))
        return
    value: Value = compact_json(loaded) if policy else loaded
    await admin.write(change.name, value)


async def apply_changes(
    settings: Settings, target: Target, admin: Administration, wanted: tuple[DocumentChange, ...]
) -> None:
    """Write changes in their order, then read all of them back.

    After an error of the store, earlier writes remain; `NotApplied` means that a document differs.
    """
    for change in wanted:
        await _write(settings, admin, change)
    live = await read_live(settings, target, admin)
    for change in changes(settings, target, live):
        raise NotApplied(
            change.name,
            ("the document read back differs from the one written; run `sluice policies diff`"),
        )
