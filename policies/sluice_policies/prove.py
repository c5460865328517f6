"""The prover: it proves each property for every caller, key and header, or finds a counterexample.

An unknown result of the solver counts as a violation. The limit of a query counts the solver's
steps, not time, so a verdict does not depend on the machine or its load. Results are cached by
everything that they depend on, so that a changed statement causes only the queries that it affects.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from sluice_policies.catalogue import ResourceType, catalogue
from sluice_policies.configuration import lifecycle_document, lifecycle_faults
from sluice_policies.evaluate import check_principals, check_supported
from sluice_policies.model import Json, PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet
from sluice_policies.properties import CALLER, Property, PropertyCase, Sense
from sluice_policies.render import BUCKET_POLICY
from sluice_policies.required_properties import lifecycle_properties, required_properties
from sluice_policies.settings import RoleName, Settings, Target, bucket_arn
from sluice_policies.symbolic import (
    Counterexample,
    Pattern,
    PatternTable,
    SymbolicRequest,
    counterexample_of,
    names_action,
    z3,
)

SOLVER_STEPS_MAX: Final = 10_000_000
"""Limit of one query, in z3's resource units: seconds of work. The largest query of the rendered
documents and of their mutants needs less than 5,000 of them."""
SolverResult = tuple[str, Counterexample | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one property.

    Attributes:
        holds: Whether it was proved; False also if the solver could not decide.
        unknown: Why the solver could not decide, or which lifecycle rule violates it.
    """

    property: Property
    holds: bool
    counterexample: Counterexample | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class RelevantStatements:
    """The statements that apply to one action in one case, without their names."""

    denies: tuple[PolicyStatement, ...]
    allows: tuple[PolicyStatement, ...]


def _nameless(statement: PolicyStatement) -> PolicyStatement:
    return PolicyStatement(
        sid="",
        effect=statement.effect,
        actions=(),
        resources=statement.resources,
        principals=statement.principals,
        services=statement.services,
        conditions=statement.conditions,
    )


def statements_naming(
    policies: PolicySet, action: str, role: RoleName | None
) -> Iterator[tuple[str, PolicyStatement]]:
    """Yield the statements that name an action, including those of the role's own policy.

    Each has the name of its document before it.
    """
    documents = {BUCKET_POLICY: policies.bucket}
    if role is not None and role in policies.identities:
        documents[f"role-{role.value}"] = policies.identities[role]
    for name, document in documents.items():
        yield from ((name, one) for one in document.statements if names_action(one, action))


def relevant(policies: PolicySet, action: str, role: RoleName | None) -> RelevantStatements:
    """Return the statements that name an action, including those of the role's own policy."""
    found = [statement for _, statement in statements_naming(policies, action, role)]
    return RelevantStatements(
        denies=tuple(_nameless(s) for s in found if s.effect is PolicyEffect.DENY),
        allows=tuple(_nameless(s) for s in found if s.effect is PolicyEffect.ALLOW),
    )


@dataclass(frozen=True, slots=True)
class SolverQuery:
    """Everything that a solver result depends on: equal queries have the same result."""

    statements: RelevantStatements
    case: PropertyCase
    sense: Sense
    resource_type: ResourceType
    caller: str | None


@dataclass(slots=True)
class Prover:
    """A prover for documents of one bucket in one dialect, with a cache of results.

    `steps_max` limits a query, in z3's resource units.
    """

    settings: Settings
    target: Target
    steps_max: int = SOLVER_STEPS_MAX
    _results: dict[SolverQuery, SolverResult] = field(default_factory=dict)

    def check(self, policies: PolicySet, item: Property) -> Verdict:
        """Prove one property, or find a request that violates it."""
        check_principals(policies)
        for case in item.cases:
            for query, action in self._queries(policies, item, case):
                unknown, broken = self._result(query, action)
                if unknown or broken is not None:
                    return Verdict(
                        property=item, holds=False, counterexample=broken, unknown=unknown
                    )
        return Verdict(property=item, holds=True)

    def _queries(
        self, policies: PolicySet, item: Property, case: PropertyCase
    ) -> Iterator[tuple[SolverQuery, str]]:
        caller = None if case.role is None else policies.principal_of(case.role)
        asked: set[SolverQuery] = set()
        bare = PropertyCase(
            actions=(),
            where=case.where,
            outside=case.outside,
            conditions=case.conditions,
            ways=case.ways,
        )
        for action in case.actions:
            statements = self._deciding(
                relevant(policies, action, case.role), item.sense, anyone=caller is None
            )
            if statements is None:
                continue
            query = SolverQuery(
                statements=statements,
                case=bare,
                sense=item.sense,
                resource_type=catalogue().actions[action.lower()].resource_type,
                caller=caller,
            )
            if query not in asked:
                asked.add(query)
                yield query, action

    def _deciding(
        self, statements: RelevantStatements, sense: Sense, *, anyone: bool
    ) -> RelevantStatements | None:
        """Return the statements with an effect on a query; None if none allows the action."""
        for statement in (*statements.denies, *statements.allows):
            check_supported(statement)
        if sense is Sense.GRANTED_ONLY_IF:
            return replace(statements, denies=()) if statements.allows else None
        if anyone and self.target is Target.AWS:  # the account allows everything
            return replace(statements, allows=())
        if sense is Sense.ONLY_IF and not statements.allows:
            return None
        return statements

    def _result(self, query: SolverQuery, action: str) -> SolverResult:
        """Return the result of a query, which an equal query about another action may have had."""
        if query not in self._results:
            self._results[query] = self._solve(query, action)
        why, broken = self._results[query]
        unknown = f"z3 cannot decide {action}: {why}" if why else ""
        return unknown, None if broken is None else replace(broken, action=action)

    def _solve(self, query: SolverQuery, action: str) -> SolverResult:
        symbolic = symbolic_request_of(query, self.target, self.settings)
        solver = z3.SimpleSolver()
        solver.set("rlimit", self.steps_max)
        solver.add(symbolic.domain, *region_of(query, symbolic), _broken(query, symbolic))
        answer = solver.check()
        if answer == z3.unsat:
            return "", None
        if answer == z3.unknown:
            return f"{solver.reason_unknown()}, steps_max=`{self.steps_max}`", None
        return "", counterexample_of(solver, action, symbolic)


def pattern_table_for(settings: Settings, target: Target) -> PatternTable:
    """Return an empty pattern table for a bucket and its key."""
    bucket = settings.bucket
    key = settings.encryption.kms_key
    return PatternTable(target, bucket_arn(settings), key, bucket.account, bucket.partition)


def symbolic_request_of(query: SolverQuery, target: Target, settings: Settings) -> SymbolicRequest:
    """Return the symbolic request of a query."""
    patterns = pattern_table_for(settings, target)
    for statement in (*query.statements.denies, *query.statements.allows):
        patterns.add_statement(statement)
    patterns.add_resources(query.case.where)
    patterns.add_conditions(query.case.conditions or ())
    for way in query.case.ways:
        patterns.add_conditions(way)
    if query.caller is not None:
        patterns.add(CALLER, Pattern(query.caller, exact=True))
    return patterns.symbolic_request(query.resource_type)


def allowed(
    statements: RelevantStatements, symbolic: SymbolicRequest, *, worst: bool
) -> z3.BoolRef:
    """Return the formula that a request is allowed.

    In the worst case, on AWS, the account allows everything to every caller.
    """
    anything = worst and symbolic.target is Target.AWS
    granted = z3.Or([symbolic.statement(s) for s in statements.allows])
    denied = z3.Or([symbolic.statement(s) for s in statements.denies])
    return z3.And(z3.BoolVal(val=True) if anything else granted, z3.Not(denied))


def region_of(query: SolverQuery, symbolic: SymbolicRequest) -> Iterator[z3.BoolRef]:
    """Yield the formulas that a request is in the range of a query."""
    if query.case.where:
        inside = symbolic.resource_like(query.case.where)
        yield z3.Not(inside) if query.case.outside else inside
    if query.caller is not None:
        yield symbolic.caller_is(query.caller)


def meets(query: SolverQuery, symbolic: SymbolicRequest) -> z3.BoolRef:
    """Return the formula that a request meets the conditions of a query."""
    conditions = query.case.conditions
    if conditions is None:
        return z3.BoolVal(val=False)
    ways = [z3.And([symbolic.condition(c) for c in way]) for way in query.case.ways]
    return z3.And(*(symbolic.condition(c) for c in conditions), *([z3.Or(ways)] if ways else ()))


def _broken(query: SolverQuery, symbolic: SymbolicRequest) -> z3.BoolRef:
    if query.sense is Sense.GRANTED_ONLY_IF:
        through = z3.Or([symbolic.statement(s) for s in query.statements.allows])
    else:
        through = allowed(query.statements, symbolic, worst=query.caller is None)
    met = meets(query, symbolic)
    if query.sense is Sense.CAN:
        return z3.And(z3.Not(through), met)
    return z3.And(through, z3.Not(met))


def prover_for(policies: PolicySet) -> Prover:
    """Return the prover of the bucket and dialect of these documents.

    Documents of one bucket share a prover, so that what they have in common is proved once.
    """
    return _prover_of(policies.settings, policies.target)


@lru_cache(maxsize=4)
def _prover_of(settings: Settings, target: Target) -> Prover:
    return Prover(settings=settings, target=target)


def lifecycle_verdicts(settings: Settings, document: Json) -> tuple[Verdict, ...]:
    """Return whether a lifecycle meets each requirement; rules are compared with all prefixes."""
    faults = {fault.requirement: fault for fault in reversed(lifecycle_faults(settings, document))}
    return tuple(
        Verdict(
            property=item,
            holds=item.name not in faults,
            unknown=str(faults[item.name]) if item.name in faults else "",
        )
        for item in lifecycle_properties()
    )


def prove(policies: PolicySet, lifecycle: Json = None) -> tuple[Verdict, ...]:
    """Prove every required property of a target, with a lifecycle or the rendered one."""
    prover = prover_for(policies)
    verdicts = (prover.check(policies, item) for item in required_properties(policies))
    beyond = {f"{name.value}-nothing-else": undecided_grant(policies, name) for name in RoleName}
    document = lifecycle_document(policies.settings) if lifecycle is None else lifecycle
    proved = tuple(
        replace(verdict, holds=False, unknown=beyond[verdict.property.name])
        if verdict.holds and beyond.get(verdict.property.name)
        else verdict
        for verdict in verdicts
    )
    aws = policies.target is Target.AWS
    return (*proved, *(lifecycle_verdicts(policies.settings, document) if aws else ()))


def undecided_grant(policies: PolicySet, name: RoleName) -> str:
    """Return why a role's own policy cannot be decided, or an empty text.

    An action on something other than the bucket and its key, such as `sts:AssumeRole`, can give
    the role the rights of another.
    """
    document = policies.identities.get(name)
    for statement in () if document is None else document.statements:
        for glob in statement.actions if statement.effect is PolicyEffect.ALLOW else ():
            if not catalogue().only_known(glob):
                return f"{statement.sid} allows {glob}, which is not only on the bucket or its key"
    return ""


def all_proved(verdicts: tuple[Verdict, ...]) -> bool:
    """Return True if there are verdicts and every property was proved."""
    return bool(verdicts) and all(verdict.holds for verdict in verdicts)
