"""The prover and the simulator agree, and the prover's representatives represent every text."""

import random
from dataclasses import replace

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st
from support.policies_live import settings
from support.policy_mutants import mutants
from support.repetitions import times

from sluice_policies.catalogue import ResourceType, bucket_actions, catalogue, object_actions
from sluice_policies.evaluate import NOTHING_ALLOWS, SERVICE_NAME, PolicyRequest, evaluate
from sluice_policies.policy_set import PolicySet, policy_set
from sluice_policies.properties import CALLER
from sluice_policies.prove import allowed, pattern_table_for, relevant
from sluice_policies.settings import RoleName, Target
from sluice_policies.symbolic import (
    RESOURCE,
    TLS,
    Pattern,
    SymbolicRequest,
    SymbolicValue,
    representatives_for,
)

CHARS = "abx/*?-. é"


def near(text: str, rng: random.Random) -> str:
    """Return a text near a boundary: unchanged, cut, extended or with one character changed."""
    at = rng.randrange(len(text) + 1)
    char = rng.choice(CHARS)
    return rng.choice([text, text[:at], text + char, text[:at] + char + text[at + 1 :]])


def representative_for(value: SymbolicValue, patterns: set[Pattern], text: str) -> int | None:
    """Return the index of a text's representative, or None if the text is outside the domain."""
    kind = [p.matches(text) for p in sorted(patterns)]
    for index, candidate in enumerate(value.representatives):
        if [p.matches(candidate) for p in sorted(patterns)] == kind:
            return index
    return None


class Judge:
    """The prover's formula for one action and role, evaluated for concrete requests."""

    def __init__(self, policies: PolicySet, action: str, role: RoleName | None) -> None:
        found = relevant(policies, action, role)
        self.patterns = pattern_table_for(policies.settings, policies.target)
        for statement in (*found.denies, *found.allows):
            self.patterns.add_statement(statement)
        self.policies, self.action, self.role = policies, action, role
        self.resource_type = catalogue().actions[action.lower()].resource_type
        self.symbolic: SymbolicRequest = self.patterns.symbolic_request(self.resource_type)
        self.formula = allowed(found, self.symbolic, worst=role is None)

    def request(self, rng: random.Random) -> tuple[PolicyRequest, bool] | None:
        """Return a random request and the formula's decision about it."""
        chosen: dict[str, str] = {}
        swaps = []
        for name, value in self.symbolic.values.items():
            text = rng.choice(value.representatives)
            if name == TLS and rng.random() < 0.8:
                text = "true"  # the remaining requests are all denied for the same reason
            if not catalogue().is_bool_key(name):
                text = near(text, rng)
            if name == CALLER and self.role is not None:
                text = self.policies.principal_of(self.role)
            index = representative_for(value, self.patterns._patterns[name], text)
            if index is None or (name in (CALLER, SERVICE_NAME) and not text):
                return None
            there = name in (TLS, RESOURCE) or (name == CALLER and self.role is not None)
            there = there or rng.random() < (0.1 if name == SERVICE_NAME else 0.4)
            swaps += [(value.present, z3.BoolVal(there)), (value.index, z3.IntVal(index))]
            if there:
                chosen[name] = text
        answer = z3.simplify(z3.substitute(self.formula, *swaps))
        caller = chosen.pop(CALLER, None)
        resource = chosen.pop(RESOURCE)
        on_bucket = self.resource_type is ResourceType.BUCKET
        resource = f"arn:aws:s3:::{self.policies.settings.bucket.name}" if on_bucket else resource
        request = PolicyRequest(
            caller=caller, action=self.action, resource=resource, context=chosen
        )
        return request, z3.is_true(answer)


def simulated(policies: PolicySet, request: PolicyRequest, role: RoleName | None) -> bool:
    """Decide with the simulator; in the worst case some other policy allows every request."""
    if role is not None or policies.target is not Target.AWS:
        return evaluate(policies, request).allowed
    bare = replace(policies, identities={})
    decision = evaluate(bare, request)
    return decision.allowed or decision.sid == NOTHING_ALLOWS


@pytest.mark.parametrize("count", [200, pytest.param(times(4_000), marks=pytest.mark.long)])
def test_prover_and_simulator_agree_on_random_requests(count: int) -> None:
    """Rendered and wrong documents, known and unknown callers, texts near all boundaries."""
    rng = random.Random(9)
    sets = []
    for target in Target:
        policies = policy_set(settings(), target)
        sets += [policies, *(m.policies for m in rng.sample(list(mutants(policies)), 40))]
    interesting = ("s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:ListBucket")
    asked = through = 0
    while asked < count:
        policies = rng.choice(sets)
        action = rng.choice((*interesting * 12, *object_actions(), *bucket_actions()))
        role = rng.choice((None, None, *RoleName))
        judge = Judge(policies, action, role)
        for _ in range(10):
            drawn = judge.request(rng)
            if drawn is None:
                continue
            request, answer = drawn
            assert simulated(policies, request, role) == answer, request
            asked += 1
            through += answer
    assert count // 20 < through < asked - count // 20


@given(
    exact=st.lists(st.text("ab/*", max_size=4), max_size=3),
    globs=st.lists(st.text("ab/*?", max_size=5), max_size=3),
    text=st.text("ab/*?c", max_size=8),
)
def test_representatives_represent_every_text(
    exact: list[str], globs: list[str], text: str
) -> None:
    """For any patterns, some representative is matched by exactly those that match the text."""
    patterns = [Pattern(t, exact=True) for t in exact] + [Pattern(g, exact=False) for g in globs]
    kinds = {
        tuple(p.matches(candidate) for p in patterns)
        for candidate in representatives_for(frozenset(patterns))
    }
    assert tuple(p.matches(text) for p in patterns) in kinds
