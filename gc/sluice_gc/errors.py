"""Errors of audit and garbage collection. After a refusal nothing was deleted."""

from enum import StrEnum

from sluice_protocol.errors import SluiceError


class RefusalRule(StrEnum):
    """The safety rule that was violated; a label of the refusal metric."""

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
    NOT_APPROVED = "not_approved"
    GRACE = "grace"
    EVIDENCE_CHANGED = "evidence_changed"
    INVENTORY = "inventory"
    AUDIT_MISSED_A_MANIFEST = "audit_missed_a_manifest"
    EXPIRE_RATIO = "expire_ratio"
    TABLE_CHANGED = "table_changed"


class GcRefused(SluiceError):
    """A safety rule is violated. This step deleted nothing, and no further step follows."""

    def __init__(self, rule: RefusalRule, reason: str) -> None:
        super().__init__(rule, reason)
        self.rule = rule
        self.reason = reason

    def __str__(self) -> str:
        return f"garbage collection refused: {self.reason}, rule=`{self.rule.value}`"


class AuditTooOld(SluiceError):
    """The newest audit is too old to execute a plan by.

    Nothing was deleted. A later audit is enough to continue, so this is no refusal.
    """

    def __init__(self, age_s: float, age_s_max: float) -> None:
        super().__init__(age_s, age_s_max)
        self.age_s = age_s
        self.age_s_max = age_s_max

    def __str__(self) -> str:
        return (
            f"plan not executed: the newest audit is {self.age_s:.0f} s old; let the task `audit`"
            f" run, audit_age_s_max=`{self.age_s_max:g}`"
        )


class CertificateInvalid(SluiceError):
    """A certificate, or the chain of certificates, is not valid.

    Attributes:
        audit_id: Its id, or the chain position where it is missing.
    """

    def __init__(self, audit_id: str, reason: str) -> None:
        super().__init__(audit_id, reason)
        self.audit_id = audit_id
        self.reason = reason

    def __str__(self) -> str:
        return f"invalid audit certificate: {self.reason}, audit_id=`{self.audit_id}`"


class AuditIncomplete(SluiceError):
    """An audit could not list everything and has no certificate. Run it again."""

    def __init__(self, prefix: str, reason: str) -> None:
        super().__init__(prefix, reason)
        self.prefix = prefix
        self.reason = reason

    def __str__(self) -> str:
        return f"incomplete audit without a certificate: {self.reason}, prefix=`{self.prefix}`"
