"""The prover of denials: for each required denial, the statements that deny it, or a request.

The formulas are those of the prover (`prove`). In addition, each denying statement has a literal,
so that the unsatisfiable core names the statements on which a denial rests.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sluice_policies.catalogue import ResourceType, catalogue
from sluice_policies.denials import (
    Denial,
    DenialGround,
    DenialOutcome,
    DenialReport,
    DenyingStatement,
    denied_callers,
    describe_condition,
    describe_proof,
    make_report,
    missing_of,
    missing_statements,
    required_denials,
    requirement_of,
    resources_of,
)
from sluice_policies.evaluate import PolicyRequest, check_principals, evaluate
from sluice_policies.model import PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.properties import Property, PropertyCase, Sense
from sluice_policies.prove import (
    SOLVER_STEPS_MAX,
    RelevantStatements,
    SolverQuery,
    meets,
    region_of,
    statements_naming,
    symbolic_request_of,
    undecided_grant,
)
from sluice_policies.required_properties import required_properties
from sluice_policies.settings import Target
from sluice_policies.symbolic import counterexample_of, z3

NamedStatement = tuple[str, PolicyStatement]
"""A statement and the name of its document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """How the requests of one action are denied."""

    outcome: DenialOutcome
    ground: DenialGround = DenialGround.NONE
    statements: tuple[NamedStatement, ...] = ()
    allowed_by: str = ""
    example: str = ""


@dataclass(slots=True)
class _ActionGroup:
    """Actions of a case that the same statements name."""

    resource_type: ResourceType
    statements: tuple[NamedStatement, ...]
    actions: list[str] = field(default_factory=list)


def prove_denials(
    policies: PolicySet, properties: tuple[Property, ...] | None = None
) -> DenialReport:
    """Return every required denial, with the statements that deny it and the proof.

    By default, all properties of the target.
    """
    check_principals(policies)
    context = _context_of(policies)
    wanted = required_properties(policies) if properties is None else properties
    found: list[Denial] = []
    for item, case in required_denials(policies, wanted):
        for group, finding in _findings(policies, item, case):
            found += _denials(context, item, case, (group, finding))
    return make_report(tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What every denial of a report needs."""

    policies: PolicySet
    rendered: PolicySet
    missing: frozenset[str]
    reasons: dict[str, str]


def _context_of(policies: PolicySet) -> _Context:
    rendered = policy_set(policies.settings, policies.target)
    return _Context(
        policies=policies,
        rendered=rendered,
        missing=missing_statements(policies, rendered),
        reasons={one.sid: one.reason for one in rendered.bucket.statements},
    )


def _denials(
    context: _Context, item: Property, case: PropertyCase, found: tuple[_ActionGroup, _Finding]
) -> Iterator[Denial]:
    """Yield one denial for each group of callers."""
    group, finding = found
    requirement = requirement_of(item)
    denied = finding.outcome is DenialOutcome.DENIED
    for callers in denied_callers(context.policies, case):
        yield Denial(
            requirement="" if requirement is None else requirement.name,
            property=item.name,
            description=item.description,
            risk="" if requirement is None else requirement.risk,
            roles=tuple(name.value for name in callers.roles),
            others=callers.others,
            actions=tuple(group.actions),
            resources=resources_of(context.policies, case, group.resource_type),
            outside=case.outside,
            unless=tuple(tuple(map(describe_condition, way)) for way in callers.unless),
            outcome=finding.outcome,
            ground=finding.ground,
            statements=tuple(
                DenyingStatement(
                    sid=one.sid, document=document, reason=context.reasons.get(one.sid, "")
                )
                for document, one in finding.statements
            ),
            missing=() if denied else missing_of(item, case, context.missing, context.rendered),
            allowed_by=finding.allowed_by,
            example=finding.example,
            proof=describe_proof(
                finding.ground, tuple(one.sid for _, one in finding.statements), case
            ),
        )


def _findings(
    policies: PolicySet, item: Property, case: PropertyCase
) -> Iterator[tuple[_ActionGroup, _Finding]]:
    """Yield each finding about a case with its actions."""
    beyond = ""
    if case.role is not None and item.name == f"{case.role.value}-nothing-else":
        beyond = undecided_grant(policies, case.role)
    merged: dict[tuple[object, ...], tuple[_ActionGroup, _Finding]] = {}
    for group in _groups(policies, case):
        finding = _find(policies, case, group)
        if finding is None:
            continue
        if beyond and finding.outcome is DenialOutcome.DENIED:
            finding = _Finding(outcome=DenialOutcome.UNDECIDED, example=beyond)
        alike = (group.resource_type, finding.outcome, finding.ground, finding.statements)
        if alike in merged:
            merged[alike][0].actions.extend(group.actions)
        else:
            merged[alike] = (group, finding)
    yield from merged.values()


def _groups(policies: PolicySet, case: PropertyCase) -> list[_ActionGroup]:
    groups: dict[tuple[object, ...], _ActionGroup] = {}
    for action in case.actions:
        statements = tuple(statements_naming(policies, action, case.role))
        resource_type = catalogue().actions[action.lower()].resource_type
        alike = (resource_type, *(id(one) for _, one in statements))
        group = groups.setdefault(alike, _ActionGroup(resource_type, statements))
        group.actions.append(action)
    return list(groups.values())


def _find(policies: PolicySet, case: PropertyCase, group: _ActionGroup) -> _Finding | None:
    """Return how the requests of a group are denied; None if there is no such request."""
    allows = [one for _, one in group.statements if one.effect is PolicyEffect.ALLOW]
    worst = case.role is None and policies.target is Target.AWS
    if not worst and not allows:
        return _denied(DenialGround.NOTHING_ALLOWS)
    search = _DenialSearch(policies, case, group, worst=worst)
    try:
        return search.run()
    except _StepsExceeded as error:
        return _Finding(outcome=DenialOutcome.UNDECIDED, example=str(error))


def _denied(ground: DenialGround, statements: tuple[NamedStatement, ...] = ()) -> _Finding:
    return _Finding(outcome=DenialOutcome.DENIED, ground=ground, statements=statements)


class _StepsExceeded(Exception):
    """The solver could not decide a query within its limit."""


class _DenialSearch:
    """The queries about one group of actions of a case.

    In the worst case, the account allows everything to every caller.
    """

    def __init__(
        self, policies: PolicySet, case: PropertyCase, group: _ActionGroup, *, worst: bool
    ) -> None:
        self._policies = policies
        self._action = group.actions[0]
        self._worst = worst
        self._denies = [pair for pair in group.statements if pair[1].effect is PolicyEffect.DENY]
        allows = tuple(one for _, one in group.statements if one.effect is PolicyEffect.ALLOW)
        query = SolverQuery(
            statements=RelevantStatements(
                denies=tuple(one for _, one in self._denies), allows=allows
            ),
            case=case,
            sense=Sense.ONLY_IF,
            resource_type=group.resource_type,
            caller=None if case.role is None else policies.principal_of(case.role),
        )
        self._symbolic = symbolic_request_of(query, policies.target, policies.settings)
        self._range = (
            self._symbolic.domain,
            *region_of(query, self._symbolic),
            z3.Not(meets(query, self._symbolic)),
        )
        self._granted = z3.Or([self._symbolic.statement(one) for one in allows])

    def run(self) -> _Finding | None:
        """Return the finding; None if the range has no request."""
        core = self._denying(self._range)
        if core is not None:
            return _denied(DenialGround.STATEMENT, core) if core else None
        if self._worst:
            return self._allowed(self._range)
        granted = (*self._range, self._granted)
        core = self._denying(granted)
        if core is None:
            return self._allowed(granted)
        return _denied(DenialGround.BOTH if core else DenialGround.NOTHING_ALLOWS, core)

    def _denying(self, formulas: tuple[z3.BoolRef, ...]) -> tuple[NamedStatement, ...] | None:
        """Return a minimal set of statements that deny every request of the formulas.

        Return None if a request matches no denying statement, and nothing if there is no request.
        """
        solver = self._solver(formulas)
        named = {f"deny-{number}": pair for number, pair in enumerate(self._denies)}
        for name, (_, statement) in named.items():
            solver.add(z3.Implies(z3.Bool(name), z3.Not(self._symbolic.statement(statement))))
        if self._check(solver, named) == z3.sat:
            return None
        core = {str(one) for one in solver.unsat_core()}
        needed = [name for name in named if name in core]
        for name in tuple(needed):
            rest = [one for one in needed if one != name]
            if self._check(solver, rest) == z3.unsat:
                needed = rest
        return tuple(named[name] for name in needed)

    def _allowed(self, formulas: tuple[z3.BoolRef, ...]) -> _Finding:
        solver = self._solver(formulas)
        solver.add([z3.Not(self._symbolic.statement(one)) for _, one in self._denies])
        self._check(solver, ())
        example = counterexample_of(solver, self._action, self._symbolic)
        request = PolicyRequest(
            caller=example.caller,
            action=example.action,
            resource=example.resource,
            context=example.context,
        )
        return _Finding(
            outcome=DenialOutcome.ALLOWED,
            allowed_by=evaluate(self._policies, request).sid,
            example=str(example),
        )

    def _solver(self, formulas: tuple[z3.BoolRef, ...]) -> z3.Solver:
        solver = z3.SimpleSolver()
        solver.set("rlimit", SOLVER_STEPS_MAX)
        solver.add(*formulas)
        return solver

    def _check(self, solver: z3.Solver, literals: Iterable[str]) -> z3.CheckSatResult:
        answer = solver.check(*(z3.Bool(name) for name in literals))
        if answer == z3.unknown:
            why = f"{solver.reason_unknown()}, steps_max=`{SOLVER_STEPS_MAX}`"
            raise _StepsExceeded(f"z3 cannot decide {self._action}: {why}")
        return answer
