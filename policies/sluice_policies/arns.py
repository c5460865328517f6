"""ARNs of the bucket and of what lies in it."""

from sluice_policies.settings import Settings


def bucket_arn(settings: Settings) -> str:
    """Gives the ARN of the bucket."""
    return f"arn:{settings.bucket.partition}:s3:::{settings.bucket.name}"


def objects_arn(settings: Settings, prefix: str = "") -> str:
    """Gives the pattern of every object under a prefix of the deployment."""
    return f"{bucket_arn(settings)}/{settings.bucket.prefix}{prefix}*"


def object_arn(settings: Settings, key: str) -> str:
    """Gives the ARN of one object, its key relative to the deployment."""
    return f"{bucket_arn(settings)}/{settings.bucket.prefix}{key}"


def objects_arns(settings: Settings, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Gives the pattern of each prefix."""
    return tuple(objects_arn(settings, prefix) for prefix in prefixes)
