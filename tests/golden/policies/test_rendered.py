"""Every rendered file is pinned; `SLUICE_GOLDEN=write` rewrites the files for review."""

import json
import os
from pathlib import Path

import pytest
import yaml
from support.policies_live import GOLDEN, settings

from sluice_policies.errors import TargetCannot
from sluice_policies.policy_set import policy_set
from sluice_policies.render import render
from sluice_policies.settings import Target


def pinned(target: Target) -> dict[str, str]:
    root = GOLDEN / target.value
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_text("utf-8") for path in files}


def write(target: Target, files: dict[str, str]) -> None:
    for name, text in files.items():
        path: Path = GOLDEN / target.value / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


@pytest.mark.parametrize("target", Target)
def test_rendered_files_equal_the_pinned_files(target: Target) -> None:
    files = render(settings(('target = "aws"', f'target = "{target.value}"'))).files
    if os.environ.get("SLUICE_GOLDEN") == "write":
        write(target, files)
    assert files == pinned(target)


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render(settings()).files == render(settings()).files


def test_templates_contain_the_same_documents() -> None:
    """CloudFormation contains them inline; Terraform reads files with the same bytes."""
    files = render(settings()).files
    stack = yaml.safe_load(files["cloudformation.yaml"])["Resources"]
    assert stack["BucketPolicy"]["Properties"]["PolicyDocument"] == json.loads(
        files["bucket-policy.json"]
    )
    for role in ("gateway", "gc", "deployer"):
        inline = stack[f"{role.title()}Policy"]["Properties"]["PolicyDocument"]
        assert inline == json.loads(files[f"role-{role}.json"])
        assert f'file("${{path.module}}/role-{role}.json")' in files["terraform/main.tf"]
        assert files[f"terraform/role-{role}.json"] == files[f"role-{role}.json"]
    assert files["terraform/bucket-policy.json"] == files["bucket-policy.json"]


def test_every_template_contains_the_reason_of_every_statement() -> None:
    files = render(settings()).files
    for statement in policy_set(settings(), Target.AWS).bucket.statements:
        comment = f"# {statement.sid}: {statement.reason}"
        assert statement.reason
        assert comment in files["terraform/main.tf"]
        assert comment in files["cloudformation.yaml"]


def test_what_versitygw_cannot_express_is_listed() -> None:
    lost = {
        item.what
        for item in render(settings(('target = "aws"', 'target = "versitygw"'))).inexpressible
    }
    assert "property accepted-created-once" in lost
    assert "statement BlobVersionsByGcAlone" in lost
    assert "configuration lifecycle" in lost


def test_a_document_over_the_size_limit_is_rejected() -> None:
    long = settings(('prefix = "prod/"', f'prefix = "{"x" * 190}/"'))
    with pytest.raises(TargetCannot, match="too large"):
        render(long)
