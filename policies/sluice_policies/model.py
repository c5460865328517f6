"""Policy documents as values, and their canonical JSON.

A document has only elements that sluice renders. `parse_document` rejects every other element
(NotAction, NotResource, NotPrincipal), so that no later code can misinterpret it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from sluice_policies.errors import BadDocument, UnsupportedPolicy

Json: TypeAlias = "str | int | bool | Sequence[Json] | Mapping[str, Json] | None"

VERSION: Final = "2012-10-17"
EVERYONE: Final = ("*",)
BUCKET_POLICY_BYTES_MAX: Final = 20 * 1024
IDENTITY_POLICY_BYTES_MAX: Final = 6 * 1024
_ELEMENTS: Final = frozenset(
    {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"},
)
_NEGATED: Final = frozenset({"NotPrincipal", "NotAction", "NotResource"})


class PolicyEffect(StrEnum):
    """The effect of a matching statement."""

    ALLOW = "Allow"
    DENY = "Deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One operator on one key; several values mean any of them, or none of them when negated."""

    operator: str
    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatement:
    """One statement.

    Attributes:
        principals: `("*",)` for everyone, names or ARNs; None in an identity policy.
        services: AWS services by the name of their principal, for example `s3.amazonaws.com`.
        conditions: All must be met.
        reason: Why the statement exists, for readers of the templates and reports.
    """

    sid: str
    effect: PolicyEffect
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    principals: tuple[str, ...] | None = None
    services: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    reason: str = ""

    @property
    def for_anyone(self) -> bool:
        """Whether it applies to every caller, or is part of an identity policy."""
        return self.principals is None or self.principals == EVERYONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A policy document: a bucket policy, or the policy of a role or user."""

    statements: tuple[PolicyStatement, ...]

    def replaced(self, index: int, *statements: PolicyStatement) -> "Document":
        """Return the document with one statement replaced by none, one or several."""
        kept = self.statements
        return replace(self, statements=(*kept[:index], *statements, *kept[index + 1 :]))


def _one_or_list(values: Sequence[str]) -> Json:
    return values[0] if len(values) == 1 else sorted(values)


def _conditions_json(conditions: tuple[Condition, ...]) -> Json:
    block: dict[str, dict[str, Json]] = {}
    for condition in conditions:
        block.setdefault(condition.operator, {})[condition.key] = _one_or_list(condition.values)
    return block


def _statement_json(statement: PolicyStatement) -> Json:
    parts: dict[str, Json] = {
        "Sid": statement.sid,
        "Effect": statement.effect.value,
        "Action": _one_or_list(statement.actions),
        "Resource": _one_or_list(statement.resources),
    }
    if statement.principals == EVERYONE:
        parts["Principal"] = "*"
    elif statement.principals is not None:
        kinds = {"AWS": statement.principals, "Service": statement.services}
        parts["Principal"] = {kind: _one_or_list(names) for kind, names in kinds.items() if names}
    if statement.conditions:
        parts["Condition"] = _conditions_json(statement.conditions)
    return parts


def document_json(document: Document) -> Json:
    """Return the document as JSON in IAM's form: single values unwrapped, lists sorted."""
    return {
        "Version": VERSION,
        "Statement": [_statement_json(statement) for statement in document.statements],
    }


def canonical_json(value: Json) -> str:
    """Return the canonical text of a JSON value: sorted keys, two spaces, a newline at the end."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def compact_json(value: Json) -> str:
    """Return the shortest text of a JSON value, which is sent and compared with size limits."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def load_json(text: str, where: str) -> Json:
    """Parse JSON, rejecting what two readers could interpret differently, such as a key twice."""

    def unique(pairs: list[tuple[str, Json]]) -> Mapping[str, Json]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            names = [name for name, _ in pairs]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise BadDocument(
                where, f"duplicate key {twice[0]!r}: one of the two values would be ignored"
            )
        return seen

    try:
        loaded: Json = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BadDocument(where, f"not JSON: {error}") from error
    return loaded


def _texts(value: Json, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and value and all(isinstance(item, str) for item in value):
        return tuple(str(item) for item in value)
    raise BadDocument(where, "expected a text or a list of texts")


def _scalar(value: Json, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise BadDocument(where, "expected a text, number or boolean")


def _values(value: Json, where: str) -> tuple[str, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_scalar(item, where) for item in value)
    return (_scalar(value, where),)


def _parse_conditions(value: Json, where: str) -> tuple[Condition, ...]:
    if not isinstance(value, Mapping):
        raise BadDocument(where, "Condition is not a map")
    found = []
    for operator, keys in value.items():
        if not isinstance(keys, Mapping):
            raise BadDocument(f"{where}.{operator}", "operator is not a map of keys")
        for key, wanted in keys.items():
            values = _values(wanted, f"{where}.{operator}.{key}")
            found.append(Condition(operator=operator, key=key, values=values))
    return tuple(found)


def _parse_principals(value: Json, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the AWS principals and the services of an element."""
    if value == "*":
        return EVERYONE, ()
    if isinstance(value, Mapping) and value and set(value) <= {"AWS", "Service"}:
        principals = _texts(value["AWS"], where) if "AWS" in value else ()
        services = _texts(value["Service"], where) if "Service" in value else ()
        if not any("*" in name for name in services):
            return principals, services
    raise UnsupportedPolicy(where, f"Principal {value!r}")


def _parse_statement(value: Json, where: str) -> PolicyStatement:
    if not isinstance(value, Mapping):
        raise BadDocument(where, "statement is not a map")
    for name in value:
        if name in _NEGATED:
            raise UnsupportedPolicy(where, name)
        if name not in _ELEMENTS:
            raise BadDocument(where, f"unknown element {name!r}")
    for name in ("Effect", "Action", "Resource"):
        if name not in value:
            raise BadDocument(where, f"element {name!r} is missing")
    if value["Effect"] not in tuple(PolicyEffect):
        raise BadDocument(where, "Effect is not Allow or Deny")
    principal = value.get("Principal")
    named = (None, ()) if principal is None else _parse_principals(principal, where)
    return PolicyStatement(
        sid=str(value.get("Sid", where)),
        effect=PolicyEffect(str(value["Effect"])),
        actions=_texts(value["Action"], f"{where}.Action"),
        resources=_texts(value["Resource"], f"{where}.Resource"),
        principals=named[0],
        services=named[1],
        conditions=_parse_conditions(value.get("Condition", {}), f"{where}.Condition"),
    )


def statements_of(value: Json, where: str) -> Sequence[Json]:
    """Return the statements of a loaded document; a single statement becomes a list of one."""
    if not isinstance(value, Mapping) or "Statement" not in value:
        raise BadDocument(where, "element 'Statement' is missing")
    found = value["Statement"]
    return found if isinstance(found, Sequence) and not isinstance(found, str) else [found]


def parse_document(text: str, where: str = "document") -> Document:
    """Parse a policy document."""
    loaded = load_json(text, where)
    statements = statements_of(loaded, where)
    return Document(
        statements=tuple(
            _parse_statement(item, f"Statement[{index}]") for index, item in enumerate(statements)
        )
    )


def identity_document(text: str, where: str = "document") -> Document:
    """Parse the policy of a role, which names no principals."""
    found = parse_document(text, where)
    for statement in found.statements:
        if statement.principals is not None:
            raise BadDocument(f"{where} {statement.sid}", "the policy of a role has no Principal")
    return found
