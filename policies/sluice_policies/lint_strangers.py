"""Lint rules for grants to callers outside the account of the bucket."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sluice_policies.evaluate import account_of, whole_account
from sluice_policies.model import Json

_ACCOUNT_KEYS: Final = ("aws:principalaccount", "aws:sourceaccount")
_SERVICE_KEYS: Final = ("aws:sourceaccount",)
_CALLER_KEYS: Final = ("aws:principalaccount", "aws:principalarn", "aws:sourceaccount")
_POSITIVE: Final = ("StringEquals", "StringLike", "ArnEquals", "ArnLike")

RuleMessage = tuple[str, str]
"""A rule's name and its message."""


def texts_of(value: Json) -> tuple[str, ...]:
    """Return a text, or the texts of a list."""
    if isinstance(value, str):
        return (value,)
    return tuple(str(v) for v in value) if isinstance(value, Sequence) else ()


def _conditions(raw: Mapping[str, Json]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the operator, the lower-case key and the values of each condition."""
    block = raw.get("Condition", {})
    for operator, keys in block.items() if isinstance(block, Mapping) else ():
        for key, values in keys.items() if isinstance(keys, Mapping) else ():
            yield operator, key.lower(), texts_of(values)


def account_in(raws: Sequence[Json]) -> str | None:
    """Return the account that the denials of a document exempt, or None if it is not unique."""
    found = set[str]()
    for raw in raws:
        if not isinstance(raw, Mapping) or raw.get("Effect") != "Deny":
            continue
        for operator, key, values in _conditions(raw):
            if operator == "StringNotEquals" and key in _ACCOUNT_KEYS:
                found.update(values)
            elif operator == "StringNotEquals" and key == "aws:principalarn":
                found.update(account_of(value) for value in values)
    return found.pop() if len(found) == 1 else None


def _restricted(raw: Mapping[str, Json], keys: tuple[str, ...], account: str | None) -> bool:
    """Return True if a condition admits only values of one account for one of the keys."""
    for operator, key, values in _conditions(raw):
        if operator not in _POSITIVE or key not in keys or not values:
            continue
        named = {account_of(value) if key.endswith("arn") else value for value in values}
        exact = all(name.isdigit() for name in named)
        if exact and (account is None or named == {account}):
            return True
    return False


def granted_to_strangers(raw: Mapping[str, Json], account: str | None) -> Iterator[RuleMessage]:
    """Yield the faults of a grant to callers outside the account of the bucket.

    Args:
        raw: One statement.
        account: The account of the bucket; None if it is unknown.
    """
    principal = raw.get("Principal")
    if raw.get("Effect") != "Allow" or principal is None:
        return
    named = principal if isinstance(principal, Mapping) else {"AWS": principal}
    for name in texts_of(named.get("AWS", ())):
        yield from _principal(raw, name, account)
    for name in texts_of(named.get("Service", ())):
        if not _restricted(raw, _SERVICE_KEYS, account):
            message = f"{name!r} can act for another account; require aws:SourceAccount"
            yield "confused-deputy", message
    for kind in named:
        if kind not in ("AWS", "Service"):
            yield "foreign-account", f"grants access to a principal of type {kind!r}"


def _principal(raw: Mapping[str, Json], name: str, account: str | None) -> Iterator[RuleMessage]:
    if name == "*":
        if not _restricted(raw, _CALLER_KEYS, account):
            message = "grants access to every principal in the world; name each principal"
            yield "open-to-all", message
    elif account is not None and (whole_account(name) or account_of(name)) != account:
        message = f"grants access to {name!r}, which is not in the account of the bucket"
        yield "foreign-account", f"{message}, account={account}"
