"""Documents as z3 formulas over one symbolic request, and a request that violates a property.

The request's action is concrete, because there are few. Its caller, its object and every condition
key are symbolic: absent, or any text. `aws:SecureTransport` is always present, as IAM documents. On
AWS the caller is a principal of the bucket's account, a principal of another account, an AWS
service, or anonymous, and the keys that AWS derives from it agree with it. Importing this module
needs the extra `policies`.

A finite set of strings represents all strings. Two strings are equivalent when the same patterns
match both. `representatives_for` returns at least one string of each equivalence class, so a query
over every string becomes a query over these strings. (z3's own theory of strings also proves the
rendered documents, but times out when it searches for a string that violates a wrong one:
`docs/adr/0040-policies-and-their-proof.md`.)

For exact texts and prefixes, the representatives are each literal, and each literal followed by one
character with which no other literal continues. Proof: let `L` be the longest literal that a string
starts with. The string is either `L`, or continues as no literal does, and is then equivalent to
`L` with that character. All other patterns are decided by running them in parallel as automata.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Final

from sluice_policies.catalogue import ResourceType, catalogue
from sluice_policies.errors import UnsupportedPolicy
from sluice_policies.evaluate import (
    PRINCIPAL_ACCOUNT,
    PRINCIPAL_IS_SERVICE,
    SERVICE_NAME,
    check_supported,
    condition_holds,
    glob_matches,
    whole_account,
)
from sluice_policies.model import Condition, PolicyStatement
from sluice_policies.properties import CALLER
from sluice_policies.settings import Target
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage

_FRESH: Final = "xyz0123456789abcdefghijklmnopqrstuvw-_.+=~ABCDEFGHIJKLMNOPQRSTUVWXYZ!#%&'@,;:"
STATES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """An IAM pattern, or an exact text, in which `*` and `?` are ordinary characters."""

    text: str
    exact: bool

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches a text."""
        return self.text == text if self.exact else glob_matches(self.text, text)

    def literal(self) -> str | None:
        """Return the text before a trailing `*`, or None if there are other wildcards."""
        if self.exact:
            return self.text
        bare: str = self.text.removesuffix("*")
        return None if "*" in bare or "?" in bare else bare


def _fresh(literals: frozenset[str], after: str) -> str:
    taken = {text[len(after)] for text in literals if text.startswith(after) and text != after}
    for char in _FRESH:
        if char not in taken:
            return char
    raise UnsupportedPolicy(after, "no unused character is left")


def _steps(pattern: Pattern, places: frozenset[int], char: str) -> frozenset[int]:
    text, found = pattern.text, set[int]()
    for place in places:
        if place == len(text):
            continue
        wild = "" if pattern.exact else text[place]
        if wild == "*":
            found.add(place)
        elif wild == "?" or text[place] == char:
            found.add(place + 1)
    return _past_stars(pattern, found)


def _past_stars(pattern: Pattern, places: set[int]) -> frozenset[int]:
    found = set(places)
    for place in places:
        at = place
        while not pattern.exact and at < len(pattern.text) and pattern.text[at] == "*":
            at += 1
            found.add(at)
    return frozenset(found)


def _representatives_by_automata(patterns: tuple[Pattern, ...]) -> tuple[str, ...]:
    chars = {c for pattern in patterns for c in pattern.text}
    alphabet = (*sorted(chars - {"*", "?"}), "*", "?", next(c for c in _FRESH if c not in chars))
    start = tuple(_past_stars(pattern, {0}) for pattern in patterns)
    seen, texts, queue = {start}, list[str](), deque([(start, "")])
    while queue:
        state, text = queue.popleft()
        texts.append(text)
        for char in alphabet:
            moved = tuple(_steps(p, at, char) for p, at in zip(patterns, state, strict=True))
            if moved not in seen:
                seen.add(moved)
                queue.append((moved, text + char))
        if len(seen) > STATES_MAX:
            raise UnsupportedPolicy("patterns", f"more than {STATES_MAX} states of wildcards")
    kinds = {tuple(p.matches(text) for p in patterns): text for text in reversed(texts)}
    return tuple(kinds.values())


@cache
def representatives_for(patterns: frozenset[Pattern]) -> tuple[str, ...]:
    """Return strings such that each string is matched by the same patterns as one of them.

    Patterns with too many wildcards raise `UnsupportedPolicy`.
    """
    ordered = tuple(sorted(patterns))
    literals = frozenset(text for text in (p.literal() for p in ordered) if text is not None)
    if any(pattern.literal() is None for pattern in ordered):
        return _representatives_by_automata(ordered)
    stems = sorted(literals | {""})
    return tuple(dict.fromkeys((*stems, *(stem + _fresh(literals, stem) for stem in stems))))


try:
    import z3
except ImportError as missing:
    raise BadUsage(describe_missing_package("policies", missing.name)) from missing

__all__ = [
    "RESOURCE",
    "TLS",
    "PatternTable",
    "SymbolicRequest",
    "SymbolicValue",
    "names_action",
    "variable_of",
    "z3",
]

RESOURCE = "resource"
TLS = "aws:securetransport"


def variable_of(key: str, target: Target) -> str | None:
    """Return the variable of a condition key, or None if the target never fills it in."""
    low = key.lower()
    if low == "aws:principalarn":
        return CALLER if target is Target.AWS else None
    return low


def _condition_patterns(condition: Condition) -> Iterator[Pattern]:
    exact = "Like" not in condition.operator
    if condition.operator != "Null":
        for value in condition.values:
            yield Pattern(value, exact)


@dataclass(slots=True)
class PatternTable:
    """The patterns that a query compares with, by variable.

    `bucket` and `key` are ARNs; the key's is empty without a KMS key.
    """

    target: Target
    bucket: str
    key: str
    account: str
    partition: str
    _patterns: dict[str, set[Pattern]] = field(default_factory=dict)

    def add(self, variable: str, *patterns: Pattern) -> None:
        """Add patterns over a variable."""
        self._patterns.setdefault(variable, set()).update(patterns)

    def add_conditions(self, conditions: tuple[Condition, ...]) -> None:
        """Add the patterns of conditions."""
        for condition in conditions:
            variable = variable_of(condition.key, self.target)
            if variable is not None:
                self.add(variable, *_condition_patterns(condition))

    def add_statement(self, statement: PolicyStatement) -> None:
        """Add the patterns of a statement."""
        self.add_resources(statement.resources)
        self.add_conditions(statement.conditions)
        if statement.for_anyone:
            return
        for name in statement.principals or ():
            account = whole_account(name) if self.target is Target.AWS else None
            variable = CALLER if account is None else PRINCIPAL_ACCOUNT
            self.add(variable, Pattern(account or name, exact=True))
        self.add(SERVICE_NAME, *(Pattern(name, exact=True) for name in statement.services))

    def add_resources(self, globs: tuple[str, ...]) -> None:
        """Add patterns over the object's ARN."""
        self.add(RESOURCE, *(Pattern(glob, exact=False) for glob in globs))

    def symbolic_request(self, resource_type: ResourceType) -> "SymbolicRequest":
        """Return the symbolic request over representatives of these patterns."""
        self.add(RESOURCE, Pattern(f"{self.bucket}/*", exact=False))
        self.add(TLS)
        self.add(CALLER)
        own = tuple(f"arn:{self.partition}:{s}::{self.account}:" for s in ("iam", "sts"))
        if self.target is Target.AWS:
            self.add(CALLER, *(Pattern(f"{start}*", exact=False) for start in own))
            self.add(PRINCIPAL_ACCOUNT, Pattern(self.account, exact=True))
            self.add(PRINCIPAL_IS_SERVICE)
            self.add(SERVICE_NAME)
        fixed = {
            ResourceType.BUCKET: self.bucket,
            ResourceType.KEY: self.key,
            ResourceType.OBJECT: "",
        }
        return _symbolic_request(
            self.target,
            fixed[resource_type],
            self.account,
            own,
            tuple(
                (name, _representatives(self.bucket, name, frozenset(patterns)))
                for name, patterns in sorted(self._patterns.items())
            ),
        )


@lru_cache(maxsize=4096)
def _representatives(bucket: str, name: str, patterns: frozenset[Pattern]) -> tuple[str, ...]:
    if catalogue().is_bool_key(name):
        return ("true", "false")
    texts = representatives_for(patterns)
    if name == RESOURCE:
        start = f"{bucket}/"
        return tuple(sorted(w for w in texts if w.startswith(start) and w != start))
    return tuple(sorted(w for w in texts if w or name not in (CALLER, SERVICE_NAME)))


@cache
def _between(name: str, first: int, last: int) -> z3.BoolRef:
    index = z3.Int(f"word {name}")
    return index == first if first == last else z3.And(index >= first, index <= last)


class SymbolicValue:
    """One variable of the request: whether it is present, and which representative it is."""

    __slots__ = ("index", "name", "present", "representatives")

    def __init__(self, name: str, texts: tuple[str, ...]) -> None:
        """Create a variable; its texts are sorted."""
        self.name = name
        self.representatives = texts
        self.present = z3.Bool(f"present {name}")
        self.index = z3.Int(f"word {name}")

    def one_of(self, meant: Callable[[str], bool]) -> z3.BoolRef:
        """Return the formula that the text is a representative for which `meant` is True.

        Representatives are sorted, so those with a common prefix are adjacent and need one range.
        """
        places = [place for place, text in enumerate(self.representatives) if meant(text)]
        starts = [place for place in places if place - 1 not in places]
        ends = [place for place in places if place + 1 not in places]
        runs = [_between(self.name, a, b) for a, b in zip(starts, ends, strict=True)]
        return runs[0] if len(runs) == 1 else z3.Or(runs)

    def domain(self) -> z3.BoolRef:
        """Return the formula that the text is one of the representatives."""
        return _between(self.name, 0, len(self.representatives) - 1)

    def read(self, model: z3.ModelRef) -> str:
        """Return the text of the variable in a model."""
        place: int = model.eval(self.index, model_completion=True).as_long()
        return self.representatives[place]


@dataclass(frozen=True, kw_only=True)
class SymbolicRequest:
    """One symbolic request and the formulas about it.

    Attributes:
        named: The ARN of the bucket or key if the action applies to it; empty for any object.
        own_callers: The start of the ARN of every principal of that account.
    """

    target: Target
    named: str
    account: str
    own_callers: tuple[str, ...]
    values: dict[str, SymbolicValue]
    _statements: dict[PolicyStatement, z3.BoolRef] = field(default_factory=dict)

    @cached_property
    def domain(self) -> z3.BoolRef:
        """The formula that every request satisfies."""
        every = (v.domain() for v in self.values.values())
        return z3.And(self.values[TLS].present, *every, *self._principal_keys())

    def _principal_keys(self) -> Iterator[z3.BoolRef]:
        """Yield how the keys that AWS derives from the principal agree with it.

        Source: IAM User Guide, "AWS global condition context keys", the availability of
        `aws:PrincipalArn`, `aws:PrincipalAccount` and `aws:PrincipalIsAWSService`. What that page
        does not state of a service principal is left open.
        """
        if self.target is not Target.AWS:
            return
        caller, account = self.values[CALLER], self.values[PRINCIPAL_ACCOUNT]
        service, flag = self.values[SERVICE_NAME].present, self.values[PRINCIPAL_IS_SERVICE]
        own = z3.And(caller.present, caller.one_of(lambda arn: arn.startswith(self.own_callers)))
        own_account = z3.And(account.present, account.one_of(lambda text: text == self.account))
        yield service == z3.And(flag.present, flag.one_of(lambda text: text == "true"))
        yield z3.Implies(service, z3.Not(own))
        yield z3.Implies(z3.Not(service), own == own_account)
        signed = z3.And(z3.Not(service), caller.present)
        yield z3.Implies(signed, z3.And(account.present, flag.present))
        anonymous = z3.And(z3.Not(service), z3.Not(caller.present))
        yield z3.Implies(anonymous, z3.Not(flag.present))
        number = account.one_of(lambda text: text.isdigit())
        yield z3.Implies(anonymous, z3.Not(z3.And(account.present, number)))

    def resource_like(self, globs: tuple[str, ...]) -> z3.BoolRef:
        """Return the formula that a pattern matches the request's resource."""
        if self.named:
            return z3.BoolVal(val=any(glob_matches(glob, self.named) for glob in globs))
        value = self.values[RESOURCE]
        return value.one_of(lambda text: any(glob_matches(glob, text) for glob in globs))

    def condition(self, condition: Condition) -> z3.BoolRef:
        """Return the formula that a condition is met, decided for each representative."""
        variable = variable_of(condition.key, self.target)
        missing = z3.BoolVal(val=condition_holds(condition, None))
        if variable is None:
            return missing
        value = self.values[variable]
        met = value.one_of(lambda text: condition_holds(condition, text))
        return z3.If(value.present, met, missing)

    def caller_is(self, *names: str) -> z3.BoolRef:
        """Return the formula that the caller is one of these."""
        value = self.values[CALLER]
        return z3.And(value.present, value.one_of(lambda text: text in names))

    def statement(self, statement: PolicyStatement) -> z3.BoolRef:
        """Return the formula that a statement, which names the action, matches the request."""
        if statement not in self._statements:
            self._statements[statement] = self._matches(statement)
        return self._statements[statement]

    def _matches(self, statement: PolicyStatement) -> z3.BoolRef:
        check_supported(statement)
        return z3.And(
            z3.BoolVal(val=True) if statement.for_anyone else self._named(statement),
            self.resource_like(statement.resources),
            *(self.condition(condition) for condition in statement.conditions),
        )

    def _named(self, statement: PolicyStatement) -> z3.BoolRef:
        """Return the formula that the caller is one of the principals of a statement."""
        principals = statement.principals or ()
        accounts = {whole_account(n) for n in principals} if self.target is Target.AWS else set()
        found = [self.caller_is(*principals)]
        if accounts - {None}:
            value = self.values[PRINCIPAL_ACCOUNT]
            found.append(z3.And(value.present, value.one_of(lambda text: text in accounts)))
        if self.target is not Target.AWS:
            return z3.Or(found)
        service = self.values[SERVICE_NAME]
        named = service.one_of(lambda text: text in statement.services)
        return z3.If(service.present, named, z3.Or(found))


@lru_cache(maxsize=1024)
def _symbolic_request(
    target: Target,
    named: str,
    account: str,
    own_callers: tuple[str, ...],
    texts: tuple[tuple[str, tuple[str, ...]], ...],
) -> SymbolicRequest:
    """Return one request for equal arguments: its formulas are the largest part of a proof."""
    return SymbolicRequest(
        target=target,
        named=named,
        account=account,
        own_callers=own_callers,
        values={name: SymbolicValue(name, representatives) for name, representatives in texts},
    )


def names_action(statement: PolicyStatement, action: str) -> bool:
    """Return True if a statement names an action."""
    return _one_names(statement.actions, action)


@lru_cache(maxsize=65_536)
def _one_names(globs: tuple[str, ...], action: str) -> bool:
    """Return `names_action`; each property needs the same statements and actions."""
    return any(glob_matches(glob, action, ignore_case=True) for glob in globs)


_PRINCIPAL_KEYS: Final = (PRINCIPAL_ACCOUNT, PRINCIPAL_IS_SERVICE, SERVICE_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A request that violates a property.

    The caller is None if anonymous.
    """

    action: str
    caller: str | None
    resource: str
    context: Mapping[str, str]

    def __str__(self) -> str:
        shown = {key: text for key, text in self.context.items() if key not in _PRINCIPAL_KEYS}
        keys = ", ".join(f"{key}={value!r}" for key, value in sorted(shown.items()))
        return (
            f"{self._who()} calls {self.action} on {self.resource}"
            f" with {keys or 'no condition keys'}"
        )

    def _who(self) -> str:
        service = self.context.get(SERVICE_NAME)
        if service is not None:
            return f"AWS service {service!r}"
        if self.caller is None:
            return "an anonymous caller"
        account = self.context.get(PRINCIPAL_ACCOUNT)
        if account is None or self.caller.startswith("arn:"):
            return self.caller
        return f"a principal of account {account!r}"


def _briefest(solver: z3.Solver, symbolic: SymbolicRequest) -> z3.ModelRef:
    """Return a counterexample without unnecessary condition keys, so that it is easy to read."""
    model = solver.model()
    solver.push()
    solver.add(symbolic.values[TLS].one_of(lambda text: text == "true"))
    if solver.check() == z3.sat:
        model = solver.model()
    else:
        solver.pop()
    for name, value in symbolic.values.items():
        if name not in (RESOURCE, CALLER):
            solver.push()
            solver.add(z3.Not(value.present))
            if solver.check() == z3.sat:
                model = solver.model()
            else:
                solver.pop()
    return model


def counterexample_of(solver: z3.Solver, action: str, symbolic: SymbolicRequest) -> Counterexample:
    """Return the request that a solver found, without unnecessary condition keys."""
    model = _briefest(solver, symbolic)
    there = {
        name: value.read(model)
        for name, value in symbolic.values.items()
        if z3.is_true(model.eval(value.present, model_completion=True))
    }
    return Counterexample(
        action=action,
        caller=there.pop(CALLER, None),
        resource=symbolic.named or symbolic.values[RESOURCE].read(model),
        context={name: text for name, text in there.items() if name != RESOURCE},
    )
