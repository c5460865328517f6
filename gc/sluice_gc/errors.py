"""Errors of audit and garbage collection. After a refusal nothing was deleted."""

from enum import StrEnum

from sluice_protocol.errors import SluiceError


class RefusalRule(StrEnum):
    """The rule that refused; it is what a schedule's alert carries."""

    NO_CERTIFICATE = "no_certificate"
    CERTIFICATE_INVALID = "certificate_invalid"
    OTHER_AUTHORITY = "other_authority"
    HORIZON_NOT_COVERED = "horizon_not_covered"
    CLOCKS_DIFFER = "clocks_differ"
    CLOCK_FELL = "clock_fell"
    EVERY_BLOB = "every_blob"
    DELETE_RATIO = "delete_ratio"
    FOREIGN_KEYS = "foreign_keys"
    UNREADABLE_MANIFESTS = "unreadable_manifests"
    VERSIONING = "versioning"
    PLAN_INVALID = "plan_invalid"
    PLAN_BEFORE_CERTIFICATE = "plan_before_certificate"
    PLAN_STOPPED = "plan_stopped"
    GRACE = "grace"
    EVIDENCE_CHANGED = "evidence_changed"
    INVENTORY = "inventory"
    AUDIT_MISSED_A_MANIFEST = "audit_missed_a_manifest"


class GcRefused(SluiceError):
    """A rule of safety does not hold: nothing was deleted by this step, and none will follow.

    Attributes:
        rule: Which rule.
        reason: What was found and what to do.
    """

    def __init__(self, rule: RefusalRule, reason: str) -> None:
        """Carries the rule and the reason."""
        super().__init__(rule, reason)
        self.rule = rule
        self.reason = reason

    def __str__(self) -> str:
        """Says which rule refused and why."""
        return f"garbage collection refused: {self.reason}, rule=`{self.rule.value}`"


class CertificateInvalid(SluiceError):
    """A certificate, or the chain of them, that does not prove what it says.

    Attributes:
        audit_id: The certificate, or the place in the chain where one should stand.
        reason: What is wrong.
    """

    def __init__(self, audit_id: str, reason: str) -> None:
        """Carries the certificate and what is wrong with it."""
        super().__init__(audit_id, reason)
        self.audit_id = audit_id
        self.reason = reason

    def __str__(self) -> str:
        """Says which certificate and why."""
        return f"audit certificate is not valid: {self.reason}, audit_id=`{self.audit_id}`"


class AuditIncomplete(SluiceError):
    """An audit that could not read everything: it gives no certificate. Run it again.

    Attributes:
        prefix: The prefix that is not covered.
        reason: What is missing.
    """

    def __init__(self, prefix: str, reason: str) -> None:
        """Carries the prefix and what is missing."""
        super().__init__(prefix, reason)
        self.prefix = prefix
        self.reason = reason

    def __str__(self) -> str:
        """Says what is not covered."""
        return f"audit is not complete, no certificate: {self.reason}, prefix=`{self.prefix}`"
