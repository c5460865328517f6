"""The rendered lifecycle deletes only superseded derived data; every harmful one is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.policies_live import bare_settings, settings

from sluice_cli.main import run
from sluice_policies.access_matrix import RECORDED_DECISIONS
from sluice_policies.configuration import (
    DELETES_CURRENT,
    DELETES_VERSIONS,
    MOVES_AWAY,
    configuration,
    lifecycle_document,
    lifecycle_faults,
)
from sluice_policies.errors import BadSettings
from sluice_policies.policy_set import policy_set
from sluice_policies.prove import all_proved, lifecycle_verdicts
from sluice_policies.render import cloudformation_template, terraform_module
from sluice_policies.settings import BlobClass, Target
from sluice_protocol import keys
from sluice_protocol.blob_deletion import EXPIRING, PERMANENT

COLD_BLOBS = 'blob_class = "intelligent-tiering"\nblob_class_days = 60\n'
COLD = settings(("[notifications]", f"[lifecycle]\n{COLD_BLOBS}[notifications]"))
VARIANTS = {"pinned": settings(), "bare": bare_settings(), "cold": COLD}
PLACE = "prod/"
Rule = dict[str, Any]


def rule(prefix: str, **elements: object) -> Rule:
    found = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": f"{PLACE}{prefix}"}}
    return found | elements


def faults(*rules: Rule) -> set[str]:
    return {one.requirement for one in lifecycle_faults(settings(), {"Rules": list(rules)})}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rendered_lifecycle_is_proved(variant: str) -> None:
    chosen = VARIANTS[variant]
    assert all_proved(lifecycle_verdicts(chosen, lifecycle_document(chosen)))


def test_every_expiring_prefix_has_a_rule_and_no_other() -> None:
    document: Any = lifecycle_document(settings())
    expiring = [r["Filter"]["Prefix"] for r in document["Rules"] if "Expiration" in r]
    assert expiring == [f"{PLACE}{prefix}" for prefix in EXPIRING]
    assert all(
        r["Expiration"] == {"ExpiredObjectDeleteMarker": True}
        for r in document["Rules"]
        if "Expiration" in r
    )


def test_old_blobs_move_only_when_configured() -> None:
    assert COLD.lifecycle.blob_class is BlobClass.INTELLIGENT_TIERING
    parts = configuration(COLD)
    policies = policy_set(COLD, Target.AWS)
    for text in (str(parts), cloudformation_template(policies, parts)):
        assert "INTELLIGENT_TIERING" in text
    assert 'storage_class = "INTELLIGENT_TIERING"' in terraform_module(policies, parts)
    bare = bare_settings()
    assert "Transitions" not in str(lifecycle_document(bare))
    assert "transition" not in terraform_module(policy_set(bare, Target.AWS), configuration(bare))


EVERY = (*keys.ALL_PREFIXES, *EXPIRING, *PERMANENT)


@pytest.mark.parametrize("prefix", sorted({*EVERY, ""}))
def test_expiry_of_current_objects_is_refused_everywhere(prefix: str) -> None:
    for expiration in ({"Days": 1}, {"Date": "2030-01-01"}, {"Days": 1, "Other": True}):
        assert DELETES_CURRENT in faults(rule(prefix, Expiration=expiration))


def test_every_recorded_decision_is_permanent() -> None:
    for prefix in RECORDED_DECISIONS:
        assert any(prefix.startswith(one) for one in PERMANENT), prefix


@pytest.mark.parametrize("prefix", [*PERMANENT, "", "acc", "raw-blobs/v1/sha256/00/"])
def test_expiry_of_permanent_versions_is_refused(prefix: str) -> None:
    expiry = {"NoncurrentDays": 3650, "NewerNoncurrentVersions": 100}
    found = rule(prefix, NoncurrentVersionExpiration=expiry)
    assert faults(found) == {DELETES_VERSIONS}
    assert faults({**found, "Status": "Disabled"}) == set()


@pytest.mark.parametrize(
    "place",
    [
        {"Filter": {}},
        {"Prefix": ""},
        {"Filter": {"Tag": {"Key": "a", "Value": "b"}}},
        {"Filter": {"ObjectSizeGreaterThan": 1_000_000}},
        {"Filter": {"And": {"Prefix": PLACE, "ObjectSizeGreaterThan": 5}}},
        {"Filter": {"And": {"Prefix": f"{PLACE}accepted", "Tags": []}}},
    ],
)
def test_filters_by_tag_or_size_protect_nothing(place: Rule) -> None:
    found = {"ID": "tidy", "Status": "Enabled", **place, "NoncurrentVersionExpiration": {}}
    assert faults(found) == {DELETES_VERSIONS}


@pytest.mark.parametrize("named", ["GLACIER", "DEEP_ARCHIVE", "ONEZONE_IA", "EXPRESS_ONEZONE", ""])
@pytest.mark.parametrize("element", ["Transitions", "NoncurrentVersionTransitions"])
def test_a_class_that_needs_a_restore_is_refused(named: str, element: str) -> None:
    moves = [{"Days": 90, "StorageClass": "GLACIER_IR"}, {"Days": 91, "StorageClass": named}]
    assert faults(rule(keys.RAW_BLOBS, **{element: moves})) == {MOVES_AWAY}
    assert faults(rule(keys.RAW_BLOBS, **{element: moves[:1]})) == set()


def test_a_neighbour_may_do_as_it_likes() -> None:
    other = {"ID": "x", "Status": "Enabled", "Prefix": "exports/", "Expiration": {"Days": 1}}
    assert faults(other) == set()


def mutants() -> list[tuple[str, Callable[[Rule], object]]]:
    return [
        ("wider", lambda r: r["Filter"].update({"Prefix": PLACE})),
        ("whole bucket", lambda r: r.update({"Filter": {}})),
        ("current", lambda r: r.update({"Expiration": {"Days": 3}})),
        ("accepted", lambda r: r["Filter"].update({"Prefix": f"{PLACE}{keys.ACCEPTED}"})),
        ("archive", lambda r: r.update({"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]})),
    ]


@pytest.mark.parametrize("name", [name for name, _ in mutants()])
def test_every_mutant_of_every_expiry_rule_is_refused(name: str) -> None:
    change = dict(mutants())[name]
    for prefix in EXPIRING:
        document: Any = lifecycle_document(COLD)
        (chosen,) = (r for r in document["Rules"] if r["Filter"]["Prefix"] == f"{PLACE}{prefix}")
        change(chosen)
        assert lifecycle_faults(COLD, document), (prefix, name)


@pytest.mark.parametrize("key", ["noncurrent_days", "blob_class_days"])
@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_out_of_range_are_refused(key: str, days: int) -> None:
    with pytest.raises(BadSettings, match="is not 1 to 3650 days"):
        settings(("[notifications]", f"[lifecycle]\n{key} = {days}\n[notifications]"))


def test_the_command_refuses_a_file_that_would_expire_blobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lifecycle.json"
    file.write_text(
        '{"Rules": [{"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "prod/raw-blobs/"},'
        ' "NoncurrentVersionExpiration": {"NoncurrentDays": 30}}]}'
    )
    pinned = Path(__file__).parents[2] / "golden" / "policies" / "settings.toml"
    command = ["policies", "prove", "--settings", str(pinned), "--documents", str(tmp_path)]
    assert run(command) == 1
    shown = capsys.readouterr().out
    assert "BROKEN  lifecycle-keeps-permanent-versions" in shown
    assert "rule 'tidy' (NoncurrentVersionExpiration) reaches raw-blobs/v1/" in shown
