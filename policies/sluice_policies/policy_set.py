"""All documents that decide about requests to one bucket, as one value."""

from dataclasses import dataclass, replace

from sluice_policies.bucket_policy import bucket_policy
from sluice_policies.identity_policies import identity_policy
from sluice_policies.model import Document
from sluice_policies.settings import RoleName, Settings, Target
from sluice_policies.versitygw import versitygw_bucket_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """The documents that decide.

    Attributes:
        settings: The names, prefixes and roles that the documents were rendered from.
        target: The dialect of the documents.
        bucket: The bucket policy.
        identities: The policy of each role; empty if the target has none.
    """

    settings: Settings
    target: Target
    bucket: Document
    identities: dict[RoleName, Document]

    def principal_of(self, name: RoleName) -> str:
        """Return the name of a role's principal on the target."""
        return self.settings.principal_of(name, self.target)

    def with_bucket(self, bucket: Document) -> "PolicySet":
        """Return a copy with another bucket policy."""
        return replace(self, bucket=bucket)

    def with_identity(self, name: RoleName, document: Document) -> "PolicySet":
        """Return a copy with another policy of one role."""
        return replace(self, identities={**self.identities, name: document})


def policy_set(settings: Settings, target: Target) -> PolicySet:
    """Return the documents that sluice renders for a target."""
    if target is Target.VERSITYGW:
        return PolicySet(
            settings=settings,
            target=target,
            bucket=versitygw_bucket_policy(settings),
            identities={},
        )
    return PolicySet(
        settings=settings,
        target=target,
        bucket=bucket_policy(settings),
        identities={name: identity_policy(settings, name) for name in RoleName},
    )
