"""The Terraform modules: their form, the policies of trust and queue, their agreement with others.

`validate` needs the schemas of the AWS provider, which only a registry of providers has. OpenTofu
therefore checks the form of every file, resolves the modules, and runs the tests of those without
a provider. That each referenced name is declared is checked here.
"""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from support.deploy_tools import ROOT, run, tool

MODULE = ROOT / "deploy" / "terraform"
OFFLINE = {"TF_CLI_CONFIG_FILE": "/dev/null", "CHECKPOINT_DISABLE": "1"}
ROLES = {
    *("gateway", "reconciler", "spark", "maintainer", "certifier", "gc", "auditor", "operator"),
    *("console", "deployer"),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the module with the rendered policies, as docs/aws.md describes."""
    folder = tmp_path_factory.mktemp("terraform") / "module"
    shutil.copytree(MODULE, folder, ignore=shutil.ignore_patterns(".terraform*", "policies"))
    program = ROOT / ".venv" / "bin" / "sluice"
    run(
        *(program, "policies", "render", "--settings", "policies.toml"),
        *("--out", "policies"),
        cwd=folder,
    )
    return folder


def test_each_file_is_formatted_and_can_be_parsed(module: Path) -> None:
    run(tool("tofu"), "fmt", "-check", "-diff", "-recursive", cwd=module, **OFFLINE)


def test_the_modules_are_found(module: Path) -> None:
    shown = run(tool("tofu"), "get", "-no-color", cwd=module, **OFFLINE)
    assert "policies in policies/terraform" in shown
    assert "trust in trust" in shown
    assert "queue_policy in queue-policy" in shown


@pytest.mark.parametrize(("name", "tests"), [("trust", 5), ("queue-policy", 4)])
def test_modules_without_a_provider(module: Path, name: str, tests: int) -> None:
    run(tool("tofu"), "init", "-no-color", cwd=module / name, **OFFLINE)
    shown = run(tool("tofu"), "test", "-no-color", cwd=module / name, **OFFLINE)
    assert f"{tests} passed, 0 failed" in shown


@pytest.mark.parametrize(
    "folder", [MODULE, MODULE / "trust", MODULE / "queue-policy"], ids=["root", "trust", "queue"]
)
def test_each_name_is_declared(folder: Path) -> None:
    text = "\n".join(one.read_text() for one in folder.glob("*.tf"))
    variables = set(re.findall(r'^variable "(\w+)"', text, re.MULTILINE))
    assert set(re.findall(r"\bvar\.(\w+)", text)) <= variables
    assert variables <= set(re.findall(r"\bvar\.(\w+)", text)), "a variable is not used"
    declared = set(re.findall(r'^resource "(\w+)" "(\w+)"', text, re.MULTILINE))
    assert set(re.findall(r"\b(aws_\w+)\.(\w+)", text)) <= declared
    modules = set(re.findall(r'^module "(\w+)"', text, re.MULTILINE))
    assert set(re.findall(r"\bmodule\.(\w+)", text)) <= modules


def test_roles_and_names_agree_with_the_settings_of_policies(module: Path) -> None:
    settings = tomllib.loads((MODULE / "policies.toml").read_text())
    assert set(settings["roles"]) == ROLES
    for name, role in settings["roles"].items():
        assert role["arn"].endswith(f":role/sluice-{name}")
    created = (MODULE / "main.tf").read_text()
    assert 'name                 = "sluice-${each.key}"' in created
    rendered = (module / "policies" / "terraform" / "main.tf").read_text()
    named = set(re.findall(r'^  role   = "sluice-(\w+)"', rendered, re.MULTILINE))
    assert named == ROLES
    queue = settings["notifications"]["queue_arn"].rpartition(":")[2]
    assert f'name                       = "{queue}"' in created


def test_each_service_account_of_a_role_is_one_of_the_chart() -> None:
    text = (MODULE / "trust" / "main.tf").read_text()
    accounts = dict(re.findall(r"^    (\w+) +=? ?= (\[.*\])$", text, re.MULTILINE))
    assert set(accounts) == ROLES
    values = (
        *("store=s3://b", "principalsSecret=p", "tokensSecret=t", "console.viewers=a=b"),
        *("certifier.enabled=true", "certifier.keySecret=k", "gc.enabled=true"),
        *("gc.trustedKeys={k}", "sparkJobs.enabled=true"),
    )
    sets = [word for one in values for word in ("--set", one)]
    shown = run(tool("helm"), "template", "one", ROOT / "deploy" / "helm" / "sluice", *sets)
    created = {
        one["metadata"]["name"].removeprefix("one-")
        for one in yaml.safe_load_all(shown)
        if one and one["kind"] == "ServiceAccount"
    }
    assert {name for names in accounts.values() for name in json.loads(names)} == created


def test_the_reconciler_may_make_each_request_to_the_event_queue() -> None:
    code = (ROOT / "core" / "sluice_store" / "s3" / "events.py").read_text()
    calls = {name.removesuffix("_batch") for name in re.findall(r"_client\.(\w+)[(,]", code)}
    wanted = {f"sqs:{name.title().replace('_', '')}" for name in calls}
    assert wanted, "no request was found"
    allowed = set(re.findall(r'"(sqs:\w+)"', (MODULE / "main.tf").read_text()))
    assert allowed == wanted


def test_no_file_fixes_the_partition() -> None:
    """A bucket in China or GovCloud has ARNs of its partition."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted(MODULE.rglob("*.tf"))
        for line in path.read_text().splitlines()
        if "arn:aws:" in line and "error_message" not in line
    ]
    assert found == []
