"""Everything that is rendered for a target: the documents, and templates that contain them."""

from dataclasses import dataclass

from sluice_policies.cloudformation import cloudformation_template
from sluice_policies.configuration import ConfigurationPart, configuration
from sluice_policies.errors import TargetCannot
from sluice_policies.model import (
    BUCKET_POLICY_BYTES_MAX,
    IDENTITY_POLICY_BYTES_MAX,
    Document,
    Json,
    canonical_json,
    compact_json,
    document_json,
)
from sluice_policies.policy_set import PolicySet, inexpressible_statements, policy_set
from sluice_policies.required_properties import inexpressible_properties
from sluice_policies.settings import Settings, Target
from sluice_policies.terraform import terraform_module

BUCKET_POLICY = "bucket-policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inexpressible:
    """Something that a target cannot express, and why, or which property is not enforced."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """The files for one target."""

    target: Target
    files: dict[str, str]
    inexpressible: tuple[Inexpressible, ...]


SUPPORTED_PARTS = {
    Target.AWS: frozenset(ConfigurationPart),
    Target.VERSITYGW: frozenset(
        {ConfigurationPart.VERSIONING, ConfigurationPart.OWNERSHIP, ConfigurationPart.OBJECT_LOCK}
    ),
}
"""The parts of a configuration that a target accepts; versitygw responds to the others with 501."""


def documents(policies: PolicySet) -> dict[str, Document]:
    """Return every policy document by its name in files and reports."""
    found = {BUCKET_POLICY: policies.bucket}
    for name, document in policies.identities.items():
        found[f"role-{name.value}"] = document
    return found


def document_texts(policies: PolicySet) -> dict[str, str]:
    """Return the canonical text of every policy document by name."""
    return {name: canonical_json(document_json(d)) for name, d in documents(policies).items()}


def supported_configuration(settings: Settings, target: Target) -> dict[ConfigurationPart, Json]:
    """Return the parts of the configuration that a target accepts, in a safe order."""
    parts = configuration(settings)
    return {part: value for part, value in parts.items() if part in SUPPORTED_PARTS[target]}


def inexpressible(policies: PolicySet) -> tuple[Inexpressible, ...]:
    """Return what a target cannot express, derived from the documents."""
    if policies.target is Target.AWS:
        return ()
    settings = policies.settings
    parts = [
        part for part in configuration(settings) if part not in SUPPORTED_PARTS[policies.target]
    ]
    return (
        *(
            Inexpressible(what=f"property {item.name}", why=f"not enforced: {item.description}")
            for item in inexpressible_properties(policies)
        ),
        *(
            Inexpressible(what=f"statement {s.sid}", why=why)
            for s, why in inexpressible_statements(settings)
        ),
        *(
            Inexpressible(what=f"configuration {part.value}", why="the server responds with 501")
            for part in parts
        ),
        Inexpressible(what="root and admin accounts", why="the server applies no policy to them"),
    )


def check_sizes(policies: PolicySet) -> None:
    """Refuse a document larger than the store accepts; shorter prefixes and role names help."""
    for name, document in documents(policies).items():
        bucket = name == BUCKET_POLICY
        limit = BUCKET_POLICY_BYTES_MAX if bucket else IDENTITY_POLICY_BYTES_MAX
        size = len(compact_json(document_json(document)).encode())
        if size > limit:
            text = f"size_bytes=`{size}`, limit_bytes=`{limit}`"
            raise TargetCannot(f"{name} is too large; shorten prefix and role names, {text}")


def reasons_json(policies: PolicySet) -> Json:
    """Return the reason of each statement by document, because JSON policies have no comments."""
    return {
        name: {statement.sid: statement.reason for statement in document.statements}
        for name, document in documents(policies).items()
    }


def render(settings: Settings) -> Rendering:
    """Render every file for the target of the settings."""
    target = settings.target
    policies = policy_set(settings, target)
    check_sizes(policies)
    parts = supported_configuration(settings, target)
    lost = inexpressible(policies)
    files = {f"{name}.json": text for name, text in document_texts(policies).items()}
    files |= {f"{part.value}.json": canonical_json(value) for part, value in parts.items()}
    files["reasons.json"] = canonical_json(reasons_json(policies))
    if target is Target.AWS:
        files["cloudformation.yaml"] = cloudformation_template(policies, parts)
        files["terraform/main.tf"] = terraform_module(policies, parts)
        for name in (f"{document}.json" for document in documents(policies)):
            files[f"terraform/{name}"] = files[name]
    else:
        files["cannot-express.json"] = canonical_json(
            [{"what": m.what, "why": m.why} for m in lost]
        )
    return Rendering(target=target, files=dict(sorted(files.items())), inexpressible=lost)
