"""The calls to AWS, on moto, which only stores the documents here."""

import io
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.policies_live import ADMIN_PROFILE, BUCKET, TEXT, settings_file, write_profiles
from support.policies_moto import moto_with_bucket, with_client

from sluice_cli.main import run
from sluice_policies.settings import RoleName

EXTRA = (
    '[notifications]\nqueue_arn = "arn:aws:sqs:us-east-1:111122223333:sluice-accepted"\n'
    '[encryption]\nmode = "sse-kms"\n'
    'kms_key = "arn:aws:kms:us-east-1:111122223333:key/0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"\n'
)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    write_profiles(tmp_path, monkeypatch)
    with moto_with_bucket() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_PROFILE", ADMIN_PROFILE)
        yield address


@pytest.fixture
def command(
    tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Any]]:
    settings = settings_file(tmp_path, "aws", tls=True, extra=EXTRA, profiles=False)

    def call(name: str, *more: str) -> tuple[int, Any]:
        code = run(["policies", name, "--settings", str(settings), "--json", *more])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else printed.err

    return call


class Terminal(io.StringIO):
    """Standard input of a terminal with this text typed."""

    def isatty(self) -> bool:
        return True


def test_documents_are_applied_in_order_read_back_and_proved(
    command: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    code, applied = command("apply")
    assert code == 0, applied
    order = applied["applied"]
    assert applied["proved"]
    assert order[0] == "versioning"
    assert order[-1] == "bucket-policy"
    assert [n for n in order if n.startswith("role-")] == [f"role-{n.value}" for n in RoleName]
    assert command("diff") == (0, [])
    assert command("apply", "--yes") == (0, {"applied": [], "proved": True})
    code, found = command("verify")
    assert (code, found["good"]) == (0, True)
    assert all(item["holds"] for item in found["properties"])
    assert {probe["outcome"] for probe in found["probes"]} == {
        "not tried: the role has no profile in the settings"
    }


def test_apply_without_a_terminal_requires_yes(command: Callable[..., tuple[int, Any]]) -> None:
    code, printed = command("apply")
    assert code == 2
    assert "--yes" in printed
    assert command("diff")[0] == 1


@pytest.mark.long
def test_apply_changes_nothing_if_the_operator_declines(
    command: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert command("apply")[0] == 1
    assert command("diff")[0] == 1


def put(endpoint: str, call: str, **arguments: object) -> None:
    with_client("s3", endpoint, lambda s3: getattr(s3, call)(Bucket=BUCKET, **arguments))


@pytest.mark.long
def test_verify_finds_each_weakened_live_document(
    command: Callable[..., tuple[int, Any]], endpoint: str
) -> None:
    """A lifecycle that expires blobs, suspended versioning, and a dropped statement by proof."""
    assert command("apply", "--yes")[0] == 0
    rule = {
        "ID": "tidy",
        "Status": "Enabled",
        "Filter": {"Prefix": "prod/raw"},
        "Expiration": {"Days": 30},
    }
    put(
        endpoint,
        "put_bucket_lifecycle_configuration",
        LifecycleConfiguration={"Rules": [rule]},
    )
    put(endpoint, "put_bucket_versioning", VersioningConfiguration={"Status": "Suspended"})
    read = with_client("s3", endpoint, lambda s3: s3.get_bucket_policy(Bucket=BUCKET))
    assert isinstance(read, dict)
    document = json.loads(read["Policy"])
    kept = [s for s in document["Statement"] if s["Sid"] != "CreateOnly"]
    put(endpoint, "put_bucket_policy", Policy=json.dumps({**document, "Statement": kept}))
    code, found = command("verify")
    assert code == 1
    dangers = {one["part"]: one["says"] for one in found["dangers"]}
    assert "'tidy'" in dangers["lifecycle"]
    assert "raw-blobs/v1/" in dangers["lifecycle"]
    assert "lost" in dangers["lifecycle"]
    assert "Suspended" in dangers["versioning"]
    assert "loses the only copy" in dangers["versioning"]
    broken = {p["property"]: p["counterexample"] for p in found["properties"] if not p["holds"]}
    assert "s3:PutObject" in broken["accepted-created-once"]


@pytest.mark.long
def test_a_live_policy_that_cannot_be_decided_is_an_error(
    command: Callable[..., tuple[int, Any]], endpoint: str
) -> None:
    assert command("apply", "--yes")[0] == 0
    odd = {
        "Effect": "Deny",
        "NotPrincipal": {"AWS": "*"},
        "Action": "s3:*",
        "Resource": f"arn:aws:s3:::{BUCKET}/*",
    }
    text = json.dumps({"Version": "2012-10-17", "Statement": [odd]})
    put(endpoint, "put_bucket_policy", Policy=text)
    code, printed = command("verify")
    assert code == 2
    assert "NotPrincipal" in printed


def test_an_unreachable_store_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles(tmp_path, monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        path = settings_file(tmp_path, "aws", tls=True)
        monkeypatch.setenv("AWS_ENDPOINT_URL", nobody)
        monkeypatch.setenv("AWS_PROFILE", ADMIN_PROFILE)
        assert run(["policies", "diff", "--settings", str(path)]) == 3


@pytest.mark.skipif("SLUICE_LIVE_BUCKET" not in os.environ, reason="opt-in: a real account")
def test_a_real_bucket_is_as_rendered_and_denies_every_probe() -> None:
    """`SLUICE_LIVE_BUCKET` names a settings file with a profile for every role."""
    settings = os.environ["SLUICE_LIVE_BUCKET"]
    assert run(["policies", "verify", "--settings", settings]) == 0


def test_the_pinned_settings_have_every_optional_part() -> None:
    """Otherwise the golden files would not show all statements."""
    for mark in ("kms_key", "vpc_endpoint", "queue_arn", "neighbours"):
        assert mark in TEXT
