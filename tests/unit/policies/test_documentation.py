"""The tables of `docs/policies.md` are current; `SLUICE_GOLDEN=write` regenerates them."""

import os
from pathlib import Path

from support.policies_live import settings

from sluice_policies.denials import (
    REQUIREMENTS,
    enforcing_statements,
    probes_of,
    property_names,
    tables,
    updated_page,
)
from sluice_policies.policy_set import policy_set
from sluice_policies.probes import PROBES
from sluice_policies.required_properties import lifecycle_properties, required_properties
from sluice_policies.settings import Target

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
SETTINGS = settings(
    ("[notifications]", "[raw_blobs]\nrequire_if_none_match = true\n[notifications]")
)
AWS, VERSITYGW = policy_set(SETTINGS, Target.AWS), policy_set(SETTINGS, Target.VERSITYGW)


def test_the_page_is_current() -> None:
    text = PAGE.read_text("utf-8")
    current = updated_page(text, tables(AWS, VERSITYGW))
    if os.environ.get("SLUICE_GOLDEN") == "write":
        PAGE.write_text(current, "utf-8")
        text = current
    assert text == current
    assert text.count("| `") > 20


def test_every_statement_enforces_a_requirement() -> None:
    named = {sid for item in REQUIREMENTS for sid in enforcing_statements(item, AWS)}
    sids = {statement.sid for statement in AWS.bucket.statements}
    assert sids <= named
    assert named - sids == {"the identity policy of each role"}


def test_every_property_proves_a_requirement() -> None:
    named = {name for item in REQUIREMENTS for name in property_names(item)}
    proved = {p.name for policies in (AWS, VERSITYGW) for p in required_properties(policies)}
    proved |= {p.name for p in lifecycle_properties()}
    assert proved == named


def test_every_probe_tests_a_requirement_and_all_but_four_are_tested() -> None:
    """TLS needs a plain endpoint, a lifecycle is not subject to policies, the option is off by
    default, and every role is in the account of the bucket. The proof and the comparison of the
    configuration cover these four.
    """
    assert {name for probe in PROBES for name in probe.requirements} <= {
        r.name for r in REQUIREMENTS
    }
    untried = {item.name for item in REQUIREMENTS if not probes_of(item)}
    assert untried == {"transport", "no-expiry", "blobs-create-only", "own-account"}
