"""Each lint rule finds its fault, and the rendered documents have no finding."""

import json

import pytest
from support.policies_live import bare_settings, settings

from sluice_policies.lint import Severity, lint
from sluice_policies.model import canonical_json, document_json
from sluice_policies.policy_set import policy_set
from sluice_policies.render import documents
from sluice_policies.settings import Settings, Target

BUCKET = "arn:aws:s3:::b"
OWN = "111122223333"


def document(**changes: object) -> str:
    statement = {
        "Sid": "One",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": f"{BUCKET}/accepted/*",
    } | changes
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def condition(operator: str, key: str, value: str = "x") -> dict[str, dict[str, str]]:
    return {operator: {key: value}}


FAULTS = {
    "unknown-action": document(Action="s3:PutObjects"),
    "unknown-key": document(Condition=condition("StringEquals", "s3:if-none-matches")),
    "key-not-for-action": document(
        Action=["s3:PutObject", "s3:DeleteObject"],
        Condition=condition("StringNotEquals", "s3:if-none-match", "*"),
    ),
    "not-principal": document(NotPrincipal={"AWS": "arn:aws:iam::111122223333:role/gc"}),
    "principal-pattern": document(Principal={"AWS": "arn:aws:iam::111122223333:role/*"}),
    "open-to-all": document(Effect="Allow"),
    "wildcard-action": document(
        Effect="Allow", Action="s3:Put*", Principal={"AWS": "arn:aws:iam::1:role/a"}
    ),
    "resource-mismatch": document(Action="s3:ListBucket"),
    "not-element": document(NotAction="s3:GetObject"),
    "too-large": document(Resource=[f"{BUCKET}/{n:0100d}" for n in range(300)]),
    "not-a-policy": "[]",
    "duplicate-key": '{"Statement": [{"Effect": "Deny", "Effect": "Allow"}]}',
}


@pytest.mark.parametrize("rule", FAULTS)
def test_each_rule_finds_its_fault(rule: str) -> None:
    assert rule in {finding.rule for finding in lint(FAULTS[rule])}


OTHER = "arn:aws:iam::444455556666:role/partner"
GRANTS = {
    "role": ({"AWS": OTHER}, {}, "foreign-account"),
    "account": ({"AWS": "444455556666"}, {}, "foreign-account"),
    "root": ({"AWS": "arn:aws:iam::444455556666:root"}, {}, "foreign-account"),
    "canonical user": ({"CanonicalUser": "79a59df9"}, {}, "foreign-account"),
    "service": ({"Service": "s3.amazonaws.com"}, {}, "confused-deputy"),
    "service for another account": (
        {"Service": "s3.amazonaws.com"},
        condition("StringEquals", "aws:SourceAccount", "444455556666"),
        "confused-deputy",
    ),
    "service if it names an account": (
        {"Service": "s3.amazonaws.com"},
        condition("StringEqualsIfExists", "aws:SourceAccount", "111122223333"),
        "confused-deputy",
    ),
    "anyone over TLS": ("*", condition("Bool", "aws:SecureTransport", "true"), "open-to-all"),
    "anyone of another account": (
        "*",
        condition("StringEquals", "aws:PrincipalAccount", "444455556666"),
        "open-to-all",
    ),
}


@pytest.mark.parametrize("name", GRANTS)
@pytest.mark.parametrize("account", ["111122223333", None])
def test_grants_outside_the_account_are_found(name: str, account: str | None) -> None:
    """Without an account, the denials of the document show it."""
    principal, conditions, rule = GRANTS[name]
    own = {"Sid": "Own", "Condition": condition("StringNotEquals", "aws:PrincipalAccount", OWN)}
    grant = {"Sid": "Grant", "Effect": "Allow", "Principal": principal, "Condition": conditions}
    text = two(own if account is None else {"Sid": "Own"}, grant)
    assert rule in {f.rule for f in lint(text, account) if f.where == "Grant"}


@pytest.mark.parametrize(
    ("principal", "conditions"),
    [
        ({"AWS": "arn:aws:iam::111122223333:role/a"}, {}),
        ("*", condition("StringEquals", "aws:PrincipalAccount", "111122223333")),
        ({"Service": "s3.amazonaws.com"}, condition("StringEquals", "aws:SourceAccount", OWN)),
    ],
)
def test_grants_within_the_account_have_no_finding(principal: object, conditions: object) -> None:
    grant = document(Effect="Allow", Principal=principal, Condition=conditions)
    assert lint(grant, OWN) == ()


def test_a_pattern_in_a_condition_on_the_caller_is_found() -> None:
    slip = condition("StringNotLike", "aws:PrincipalArn", "arn:aws:iam::1:role/gc*")
    assert "principal-pattern" in {f.rule for f in lint(document(Condition=slip))}


def test_a_key_of_another_action_is_reported_with_both_names() -> None:
    found = next(f for f in lint(FAULTS["key-not-for-action"]) if f.rule == "key-not-for-action")
    assert "s3:DeleteObject" in found.message
    assert "s3:if-none-match" in found.message
    assert found.severity is Severity.ERROR


def two(one: dict[str, object], other: dict[str, object]) -> str:
    loaded = [json.loads(document(**changes))["Statement"][0] for changes in (one, other)]
    return json.dumps({"Statement": loaded})


def test_shadowed_statements_are_found_whichever_comes_first() -> None:
    narrow = {"Sid": "Narrow", "Condition": condition("Null", "s3:x-amz-copy-source", "false")}
    wide = {"Sid": "Wide", "Resource": f"{BUCKET}/*"}
    for text in (two(narrow, wide), two(wide, narrow)):
        shadowed = [f.where for f in lint(text) if f.rule == "shadowed"]
        assert shadowed == ["Narrow"]


def test_a_grant_that_a_denial_covers_is_found() -> None:
    role = {"AWS": "arn:aws:iam::1:role/a"}
    text = two({"Sid": "Yes", "Effect": "Allow", "Principal": role}, {"Sid": "No"})
    assert [f.where for f in lint(text) if f.rule == "shadowed"] == ["Yes"]


def test_equal_sids_are_found() -> None:
    assert "duplicate-sid" in {f.rule for f in lint(two({}, {"Resource": f"{BUCKET}/other/*"}))}


@pytest.mark.parametrize("chosen", [settings(), bare_settings()], ids=["pinned", "bare"])
def test_the_rendered_documents_have_no_finding(chosen: Settings) -> None:
    for name, rendered in documents(policy_set(chosen, Target.AWS)).items():
        assert lint(canonical_json(document_json(rendered))) == (), name
