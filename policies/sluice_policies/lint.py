"""Lint rules for any policy file; they read the JSON and evaluate nothing.

Each rule reads one statement and yields findings. An `error` is what a store rejects or
misinterprets. A `warning` is valid, but permits more or does less than it seems to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_policies.catalogue import Action, ResourceType, catalogue
from sluice_policies.errors import BadDocument, UnsupportedPolicy
from sluice_policies.evaluate import account_of, glob_matches, whole_account
from sluice_policies.model import (
    BUCKET_POLICY_BYTES_MAX,
    EVERYONE,
    IDENTITY_POLICY_BYTES_MAX,
    Json,
    PolicyEffect,
    PolicyStatement,
    compact_json,
    load_json,
    parse_document,
    statements_of,
)

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


def _condition_texts(raw: Mapping[str, Json]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
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
        for operator, key, values in _condition_texts(raw):
            if operator == "StringNotEquals" and key in _ACCOUNT_KEYS:
                found.update(values)
            elif operator == "StringNotEquals" and key == "aws:principalarn":
                found.update(account_of(value) for value in values)
    return found.pop() if len(found) == 1 else None


def _restricted(raw: Mapping[str, Json], keys: tuple[str, ...], account: str | None) -> bool:
    """Return True if a condition admits only values of one account for one of the keys."""
    for operator, key, values in _condition_texts(raw):
        if operator not in _POSITIVE or key not in keys or not values:
            continue
        named = {account_of(value) if key.endswith("arn") else value for value in values}
        exact = all(name.isdigit() for name in named)
        if exact and (account is None or named == {account}):
            return True
    return False


def granted_to_strangers(raw: Mapping[str, Json], account: str | None) -> Iterator[RuleMessage]:
    """Yield the faults of a grant to callers outside the account of the bucket, if it is known."""
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


_NOT_ELEMENTS: Final = ("NotAction", "NotResource")


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One fault in a document, and its remedy; `where` is the statement, by Sid or index."""

    rule: str
    severity: Severity
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.where}: {self.message} [{self.rule}]"


def _error(rule: str, where: str, message: str) -> LintFinding:
    return LintFinding(rule=rule, severity=Severity.ERROR, where=where, message=message)


def _warning(rule: str, where: str, message: str) -> LintFinding:
    return LintFinding(rule=rule, severity=Severity.WARNING, where=where, message=message)


def _named(glob: str) -> tuple[Action, ...]:
    return tuple(
        action
        for action in catalogue().actions.values()
        if glob_matches(glob, action.name, ignore_case=True)
    )


def _actions(where: str, raw: Mapping[str, Json]) -> Iterator[LintFinding]:
    table = catalogue()
    for glob in texts_of(raw.get("Action", ())):
        low = glob.lower()
        known = _named(glob) or any(glob_matches(low, name) for name in table.other_actions)
        if not known and low.startswith(("s3:", "kms:")):
            yield _error("unknown-action", where, f"no such action: {glob!r}")
        elif not known and glob != "*":
            yield _warning(
                "other-service", where, f"{glob!r} is not an action on a bucket or its key"
            )
        if raw.get("Effect") == "Allow" and ("*" in glob or "?" in glob):
            yield _warning(
                "wildcard-action",
                where,
                f"{glob!r} also allows actions that AWS adds later; list the actions",
            )


def _resources(where: str, raw: Mapping[str, Json]) -> Iterator[LintFinding]:
    resources = texts_of(raw.get("Resource", ()))
    on_s3 = [r for r in resources if r.startswith("arn:") and ":s3:::" in r]
    if len(on_s3) != len(resources):
        return
    objects = [r for r in on_s3 if "/" in r]
    for glob in texts_of(raw.get("Action", ())):
        kinds = {action.resource_type for action in _named(glob)}
        if kinds == {ResourceType.OBJECT} and not objects:
            yield _error(
                "resource-mismatch", where, f"{glob!r} applies to objects; name bucket/key"
            )
        if kinds == {ResourceType.BUCKET} and len(objects) == len(on_s3):
            yield _error(
                "resource-mismatch", where, f"{glob!r} applies to the bucket, not to objects"
            )


def _conditions(where: str, raw: Mapping[str, Json]) -> Iterator[LintFinding]:
    block = raw.get("Condition", {})
    if not isinstance(block, Mapping):
        return
    table = catalogue()
    actions = [action for glob in texts_of(raw.get("Action", ())) for action in _named(glob)]
    wild = any("*" in glob for glob in texts_of(raw.get("Action", ())))
    for keys in block.values():
        for key in keys if isinstance(keys, Mapping) else ():
            if not table.known_key(key) and key.lower().startswith(("s3:", "aws:")):
                yield _error("unknown-key", where, f"no such condition key: {key!r}")
                continue
            for action in actions:
                if not wild and not table.applies(key, action):
                    message = f"{key!r} is never filled in for {action.name}; split the statement"
                    yield _error("key-not-for-action", where, message)


def _principals(where: str, raw: Mapping[str, Json]) -> Iterator[LintFinding]:
    if "NotPrincipal" in raw:
        message = (
            "NotPrincipal also denies sessions of the roles that it exempts; use a condition on"
        )
        yield _error("not-principal", where, f"{message} aws:PrincipalArn")
    for name in _NOT_ELEMENTS:
        if name in raw:
            yield _warning("not-element", where, f"{name} also matches what AWS adds later")
    principal = raw.get("Principal")
    names = principal.values() if isinstance(principal, Mapping) else [principal]
    for name in (text for value in names if value is not None for text in texts_of(value)):
        if name != "*" and ("*" in name or "?" in name):
            yield _error(
                "principal-pattern", where, f"{name!r} is not a principal; patterns are not allowed"
            )


def _patterns_of_principals(where: str, raw: Mapping[str, Json]) -> Iterator[LintFinding]:
    block = raw.get("Condition", {})
    for operator, keys in block.items() if isinstance(block, Mapping) else ():
        for key, values in keys.items() if isinstance(keys, Mapping) else ():
            if key.lower() != "aws:principalarn" or "Like" not in operator:
                continue
            for text in texts_of(values):
                if "*" in text or "?" in text:
                    message = f"{text!r} also matches roles that others create; name each role"
                    yield _warning("principal-pattern", where, message)


def _unique_sids(raws: Sequence[Json]) -> Iterator[LintFinding]:
    sids = [str(raw["Sid"]) for raw in raws if isinstance(raw, Mapping) and "Sid" in raw]
    for sid in sorted({sid for sid in sids if sids.count(sid) > 1}):
        yield _error("duplicate-sid", sid, "two statements have this Sid")


def _covers(broad: PolicyStatement, narrow: PolicyStatement) -> bool:
    """Return True if every request of `narrow` is one of `broad`; False when undecided.

    A pattern covers another when it matches the other's text. The `*` of the narrow pattern is then
    an ordinary character, which only a `*` of the broad pattern matches.
    """

    def within(wide: tuple[str, ...], tight: tuple[str, ...], *, fold: bool = False) -> bool:
        return all(any(glob_matches(w, t, ignore_case=fold) for w in wide) for t in tight)

    same_people = broad.principals in (narrow.principals, EVERYONE)
    return (
        same_people
        and within(broad.actions, narrow.actions, fold=True)
        and within(broad.resources, narrow.resources)
        and set(broad.conditions) <= set(narrow.conditions)
        and not any("?" in text for text in (*broad.actions, *broad.resources))
    )


def _shadowed(text: str) -> Iterator[LintFinding]:
    try:
        statements = parse_document(text).statements
    except (BadDocument, UnsupportedPolicy):
        return
    for index, statement in enumerate(statements):
        for other_index, other in enumerate(statements):
            if index == other_index or not _covers(other, statement):
                continue
            twins = _covers(statement, other) and index < other_index
            if other.effect is statement.effect and not twins:
                message = f"has no effect beyond {other.sid!r}"
                yield _warning("shadowed", statement.sid, message)
            elif other.effect is PolicyEffect.DENY and statement.effect is PolicyEffect.ALLOW:
                yield _warning(
                    "shadowed", statement.sid, f"{other.sid!r} denies all of its requests"
                )


def _size(loaded: Json, raws: Sequence[Json]) -> Iterator[LintFinding]:
    bucket = any(
        isinstance(raw, Mapping) and ("Principal" in raw or "NotPrincipal" in raw) for raw in raws
    )
    limit = BUCKET_POLICY_BYTES_MAX if bucket else IDENTITY_POLICY_BYTES_MAX
    size = len(compact_json(loaded).encode())
    if size > limit:
        kind = "bucket" if bucket else "identity"
        yield _error(
            "too-large",
            "document",
            f"{kind} policy is too large, size_bytes={size} limit_bytes={limit}",
        )


_RULES: Final = (_actions, _resources, _conditions, _principals, _patterns_of_principals)


def lint(text: str, account: str | None = None) -> tuple[LintFinding, ...]:
    """Return the faults of one policy document, errors first.

    Without an account, it is the one that the document's denials exempt.
    """
    try:
        loaded = load_json(text, "document")
        raws = statements_of(loaded, "document")
    except BadDocument as error:
        twice = "duplicate key" in error.reason
        return (_error("duplicate-key" if twice else "not-a-policy", error.where, error.reason),)
    found = [*_size(loaded, raws), *_unique_sids(raws), *_shadowed(text)]
    for index, raw in enumerate(raws):
        if not isinstance(raw, Mapping):
            found.append(_error("not-a-policy", f"Statement[{index}]", "statement is not a map"))
            continue
        where = str(raw.get("Sid", f"Statement[{index}]"))
        for rule in _RULES:
            found.extend(rule(where, raw))
        for name, message in granted_to_strangers(raw, account or account_in(raws)):
            found.append(_error(name, where, message))
    return tuple(sorted(found, key=lambda item: (item.severity.value, item.where, item.rule)))
