"""The prover: every property over every caller, key and header, or a request that breaks it.

"Cannot tell" counts as broken. Questions are remembered by what they are about, so that a changed
statement asks again only what it can change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_policies.arns import bucket_arn
from sluice_policies.catalogue import On, catalogue
from sluice_policies.model import PolicyEffect, PolicyStatement
from sluice_policies.policy_set import PolicySet
from sluice_policies.properties import WHO, Property, PropertyCase, Sense
from sluice_policies.required_properties import required_properties
from sluice_policies.settings import RoleName, Settings, Target
from sluice_policies.symbolic import RESOURCE, Vocabulary, World, speaks_of, z3
from sluice_policies.witnesses import Pattern

TIMEOUT_MS: Final = 2_000
Answer = tuple[str, "Counterexample | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A request that breaks a property.

    Attributes:
        action: What it calls.
        who: Who calls, or None for nobody.
        resource: The ARN.
        context: The condition keys it has.
    """

    action: str
    who: str | None
    resource: str
    context: Mapping[str, str]

    def __str__(self) -> str:
        """Says it in one line."""
        keys = ", ".join(f"{key}={value!r}" for key, value in sorted(self.context.items()))
        return (
            f"{self.who or 'an anonymous caller'} calls {self.action} on {self.resource}"
            f" with {keys or 'no condition keys'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found of one property.

    Attributes:
        property: Which.
        holds: Whether it was proved; False also when z3 could not tell.
        counterexample: A request that breaks it.
        unknown: Why z3 could not tell.
    """

    property: Property
    holds: bool
    counterexample: Counterexample | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class RelevantStatements:
    """The statements that decide over one action in one case, apart from their names."""

    denies: tuple[PolicyStatement, ...]
    allows: tuple[PolicyStatement, ...]


def _nameless(statement: PolicyStatement) -> PolicyStatement:
    return PolicyStatement(
        sid="",
        effect=statement.effect,
        actions=(),
        resources=statement.resources,
        principals=statement.principals,
        conditions=statement.conditions,
    )


def relevant(policies: PolicySet, action: str, role: RoleName | None) -> RelevantStatements:
    """Gives the statements that speak of an action, the role's own policy among them."""
    documents = [policies.bucket]
    if role is not None and role in policies.identities:
        documents.append(policies.identities[role])
    found = [s for d in documents for s in d.statements if speaks_of(s, action)]
    return RelevantStatements(
        denies=tuple(_nameless(s) for s in found if s.effect is PolicyEffect.DENY),
        allows=tuple(_nameless(s) for s in found if s.effect is PolicyEffect.ALLOW),
    )


@dataclass(frozen=True, slots=True)
class Question:
    """All that an answer depends on: equal questions have one answer."""

    statements: RelevantStatements
    case: PropertyCase
    sense: Sense
    on: On
    who: str | None


@dataclass(slots=True)
class Prover:
    """Answers about documents for one bucket in one dialect, remembering what it answered.

    Attributes:
        settings: Whose bucket and key it is.
        target: The dialect.
    """

    settings: Settings
    target: Target
    _answers: dict[Question, Answer] = field(default_factory=dict)

    def check(self, policies: PolicySet, item: Property) -> Verdict:
        """Proves one property, or finds a request that breaks it."""
        for case in item.cases:
            for question, action in self._questions(policies, item, case):
                unknown, broken = self._answer(question, action)
                if unknown or broken is not None:
                    return Verdict(
                        property=item, holds=False, counterexample=broken, unknown=unknown
                    )
        return Verdict(property=item, holds=True)

    def _questions(
        self, policies: PolicySet, item: Property, case: PropertyCase
    ) -> Iterator[tuple[Question, str]]:
        who = None if case.role is None else policies.who(case.role)
        asked: set[Question] = set()
        bare = PropertyCase(
            actions=(), where=case.where, outside=case.outside, conditions=case.conditions
        )
        for action in case.actions:
            question = Question(
                statements=relevant(policies, action, case.role),
                case=bare,
                sense=item.sense,
                on=catalogue().actions[action.lower()].on,
                who=who,
            )
            if question not in asked:
                asked.add(question)
                yield question, action

    def _answer(self, question: Question, action: str) -> Answer:
        if question not in self._answers:
            self._answers[question] = self._ask(question, action)
        return self._answers[question]

    def _ask(self, question: Question, action: str) -> Answer:
        world = world_of(question, self.target, self.settings)
        solver = z3.Solver()
        solver.set("timeout", TIMEOUT_MS)
        solver.add(world.domain(), *_region(question, world), _broken(question, world))
        answer = solver.check()
        if answer == z3.unsat:
            return "", None
        if answer == z3.unknown:
            return f"z3 could not tell for {action}: {solver.reason_unknown()}", None
        return "", _counterexample(_briefest(solver, world), action, world)


def vocabulary_for(settings: Settings, target: Target) -> Vocabulary:
    """Gives an empty vocabulary over a bucket and its key."""
    return Vocabulary(target, bucket_arn(settings), settings.encryption.kms_key)


def world_of(question: Question, target: Target, settings: Settings) -> World:
    """Gives the symbolic request of a question."""
    vocabulary = vocabulary_for(settings, target)
    for statement in (*question.statements.denies, *question.statements.allows):
        vocabulary.add_statement(statement)
    vocabulary.add_resources(question.case.where)
    vocabulary.add_conditions(question.case.conditions or ())
    if question.who is not None:
        vocabulary.add(WHO, Pattern(question.who, exact=True))
    return vocabulary.world(question.on)


def allowed(statements: RelevantStatements, world: World, *, worst: bool) -> z3.BoolRef:
    """Gives that a request gets through.

    Args:
        statements: Those that speak of its action.
        world: The symbolic request.
        worst: Whether, on AWS, the account allows every caller everything.
    """
    anything = worst and world.target is Target.AWS
    granted = z3.Or([world.statement(s) for s in statements.allows])
    denied = z3.Or([world.statement(s) for s in statements.denies])
    return z3.And(z3.BoolVal(val=True) if anything else granted, z3.Not(denied))


def _region(question: Question, world: World) -> Iterator[z3.BoolRef]:
    if question.case.where:
        inside = world.resource_like(question.case.where)
        yield z3.Not(inside) if question.case.outside else inside
    if question.who is not None:
        yield world.caller_is(question.who)


def _broken(question: Question, world: World) -> z3.BoolRef:
    through = allowed(question.statements, world, worst=question.who is None)
    conditions = question.case.conditions
    if conditions is None:
        return through
    met = z3.And([world.condition(condition) for condition in conditions])
    if question.sense is Sense.ONLY_IF:
        return z3.And(through, z3.Not(met))
    return z3.And(z3.Not(through), met)


def _briefest(solver: z3.Solver, world: World) -> z3.ModelRef:
    """Gives a breaking request that has no condition key without need, for people to read."""
    model = solver.model()
    for name, value in world.values.items():
        if name not in (RESOURCE, WHO):
            solver.push()
            solver.add(z3.Not(value.present))
            if solver.check() == z3.sat:
                model = solver.model()
            else:
                solver.pop()
    return model


def _counterexample(model: z3.ModelRef, action: str, world: World) -> Counterexample:
    there = {
        name: value.read(model)
        for name, value in world.values.items()
        if z3.is_true(model.eval(value.present, model_completion=True))
    }
    return Counterexample(
        action=action,
        who=there.pop(WHO, None),
        resource=world.named or world.values[RESOURCE].read(model),
        context={name: text for name, text in there.items() if name != RESOURCE},
    )


def prover_for(policies: PolicySet) -> Prover:
    """Gives a prover for the bucket and dialect of these documents."""
    return Prover(settings=policies.settings, target=policies.target)


def prove(policies: PolicySet) -> tuple[Verdict, ...]:
    """Proves every required property of a target.

    Raises:
        UnsupportedPolicy: A document holds something that is not decided here.
    """
    prover = prover_for(policies)
    return tuple(prover.check(policies, item) for item in required_properties(policies))
