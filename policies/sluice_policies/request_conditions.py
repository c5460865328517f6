"""What every request must bring, whoever sends it."""

from sluice_policies.bucket_policy import ENDPOINT, SSE, SSE_CUSTOMER, SSE_KEY, TLS
from sluice_policies.model import Condition
from sluice_policies.properties import absent, absent_or, equals
from sluice_policies.settings import RoleName, Settings


def encryption_conditions(settings: Settings) -> tuple[Condition, ...]:
    """Gives what a put must say of encryption: nothing, or what the settings say."""
    kms = settings.encryption.mode == "sse-kms"
    key = absent_or(SSE_KEY, settings.encryption.kms_key) if kms else ()
    return (*absent_or(SSE, "aws:kms" if kms else "AES256"), absent(SSE_CUSTOMER), *key)


def transport_conditions(settings: Settings, role: RoleName | None = None) -> tuple[Condition, ...]:
    """Gives what every request must bring: TLS, and the endpoint unless the deployer sends it."""
    tls = (equals(TLS, "true"),) if settings.network.require_tls else ()
    endpoint = "" if role is RoleName.DEPLOYER else settings.network.vpc_endpoint
    return (*tls, *((equals(ENDPOINT, endpoint),) if endpoint else ()))
