"""A settings file that cannot be used is refused with the line of the error."""

import re
from pathlib import Path

import pytest
from support.policies_live import TEXT, bare_settings, settings

from sluice_policies.errors import BadDocument, BadSettings
from sluice_policies.model import load_json
from sluice_policies.render import render
from sluice_policies.settings import RoleName, Target, parse_settings, read_settings

INVALID = {
    "bucket name with capitals": ('"example-sluice"', '"Example_Sluice"', "name ="),
    "bucket name as an address": ('"example-sluice"', '"192.168.0.1"', "name ="),
    "bucket name too short": ('"example-sluice"', '"ab"', "name ="),
    "bucket name of a directory bucket": ('"example-sluice"', '"b--euw1-az1--x-s3"', "name ="),
    "two roles with one ARN": ("role/sluice/gc", "role/sluice/spark", "role/sluice/spark"),
    "neighbour inside the prefix": ('["exports/"]', '["prod/eu/"]', "neighbours ="),
    "prefix inside a neighbour": ('["exports/"]', '["exports/", "exports/a/"]', "neighbours ="),
    "prefix without its slash": ('prefix = "prod/"', 'prefix = "prod"', "prefix ="),
    "prefix that is a pattern": ('prefix = "prod/"', 'prefix = "pr*d/"', "prefix ="),
    "role of another account": ("111122223333:role/sluice/gc", "999922223333:role/x", "9999"),
    "role that is a session": (":role/sluice/gc", ":assumed-role/sluice/gc", "assumed-role"),
    "account with letters": ('"111122223333"', '"1111222233ab"', "account ="),
    "region of another partition": ("region = ", 'partition = "aws-cn"\nregion = ', "partition ="),
    "key of another partition": ("arn:aws:kms", "arn:aws-cn:kms", "kms_key ="),
    "queue of another partition": ("arn:aws:sqs", "arn:aws-us-gov:sqs", "queue_arn ="),
    "no key for kms": ("kms_key = ", 'kms_key = ""  # ', "kms_key ="),
    "wrong endpoint": ('"vpce-0123456789abcdef0"', '"endpoint"', "vpc_endpoint ="),
    "unknown key": ("region = ", "reigon = ", "reigon"),
    "unknown table": ("[network]", "[netwrok]", "netwrok"),
    "wrong type": ('neighbours = ["exports/"]', "neighbours = 3", "neighbours"),
    "unknown mode": ('"sse-kms"', '"sse-c"', "mode ="),
    "unknown version": ("version = 1", "version = 2", "version"),
    "unknown target": ('target = "aws"', 'target = "minio"', "target"),
    "aws without TLS": ("[network]", "[network]\nrequire_tls = false", "require_tls"),
    "broken TOML": ("[encryption]", "[encryption", "[encryption"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_are_rejected_with_the_line(case: str) -> None:
    old, new, mark = INVALID[case]
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    with pytest.raises(BadSettings) as caught:
        parse_settings(text, "settings.toml")
    lines = [n for n, line in enumerate(text.splitlines(), start=1) if mark in line]
    assert caught.value.line in lines, str(caught.value)
    assert str(caught.value).startswith(f"settings.toml:{caught.value.line}: ")


@pytest.mark.parametrize("value", ["[" * 5_000, "1" * 5_000], ids=["nested", "long number"])
def test_values_that_no_parser_reads_are_rejected(value: str) -> None:
    with pytest.raises(BadSettings, match="not TOML"):
        parse_settings(f"{TEXT}\nx = {value}\n", "settings.toml")
    with pytest.raises(BadDocument, match="not JSON"):
        load_json(value, "policy.json")


def test_two_roles_with_the_same_user_are_rejected() -> None:
    with pytest.raises(BadSettings, match="have the same user"):
        settings(('role/sluice/gc"', 'role/sluice/gc"\nuser = "sluice-spark"'))


def test_object_lock_days_are_bounded() -> None:
    with pytest.raises(BadSettings, match="is not 1 to"):
        settings(
            ("[notifications]", '[object_lock]\nmode = "GOVERNANCE"\ndays = 0\n[notifications]')
        )


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        BadSettings, match="cannot read settings: No such file or directory; pass the path"
    ):
        read_settings(tmp_path / "none.toml")


def test_a_missing_role_is_rejected() -> None:
    start = "[roles.gateway]\n"
    with pytest.raises(BadSettings, match=r"arn.*roles\.gateway"):
        parse_settings(TEXT.replace(f"{start}arn", f"{start}user"), "s")


def test_defaults_need_only_bucket_and_roles() -> None:
    found = bare_settings()
    assert found.target is Target.AWS
    assert found.user(RoleName.GC) == "sluice-gc"


def test_a_missing_table_of_a_role_is_reported_with_its_name() -> None:
    table = '[roles.certifier]\narn = "arn:aws:iam::111122223333:role/sluice/certifier"\n'
    with pytest.raises(BadSettings, match=r"add \[roles\.certifier\] with its arn"):
        settings((table, ""))


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("eu-central-1", "aws"),
        ("us-east-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("cn-northwest-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
    ],
)
def test_the_partition_follows_from_the_region(region: str, partition: str) -> None:
    """Every ARN of the rendered documents is of the partition of the bucket."""
    found = settings(("eu-central-1", region), ("arn:aws:", f"arn:{partition}:"))
    assert found.bucket.partition == partition
    shown = "".join(render(found).files.values())
    assert set(re.findall(r"arn:(aws[a-z-]*):", shown)) == {partition}
