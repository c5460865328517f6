"""The Helm chart: accepted by helm, rendered to valid objects, with commands that exist."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deploy_tools import ROOT, run, tool
from support.documented_blocks import blocks_of, check_command

CHART = ROOT / "deploy" / "helm" / "sluice"
REQUIRED = (
    "store=s3://bucket/main?region=eu-central-1",
    "principalsSecret=principals",
    "tokensSecret=tokens",
    "console.viewers=a=b",
)
EVERYTHING = (
    *REQUIRED,
    "credentialsSecret=aws",
    "gateway.grpc=true",
    "gateway.forward=true",
    "gateway.tlsSecret=certificate",
    "gateway.ingress.enabled=true",
    "gateway.ingress.host=gateways.example",
    "gateway.ingress.tlsSecret=public",
    "gateway.autoscaling.enabled=true",
    "query.operators=a=b",
    "console.operators=a=b",
    "certifier.enabled=true",
    "certifier.keySecret=auditor",
    "gc.enabled=true",
    "gc.trustedKeys={key}",
    "sparkJobs.enabled=true",
    "retention.keep=90d",
    "agent.enabled=true",
    "agent.keySecret=agent",
    "agent.gateway=https://gateways.example",
    "agent.exclude={/var/log/pods/kube-system_*}",
    "serviceMonitor.enabled=true",
    "settings.gateway.workers=2",
    "settings.maintain.retention_days.logs=90",
)
KUBERNETES = ("1.29", "1.37")
"""The oldest version of the chart and the newest that the validator knows."""
WITHOUT_SCHEMA = {"ServiceMonitor"}
"""Types of the operator of Prometheus: Kubernetes has no schema for them."""


def sets(values: tuple[str, ...]) -> list[str]:
    return [word for one in values for word in ("--set", one)]


def rendered(*values: str) -> list[dict[str, Any]]:
    shown = run(tool("helm"), "template", "one", CHART, *sets(values))
    return [one for one in yaml.safe_load_all(shown) if one]


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return rendered(*EVERYTHING)


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the template of each pod by the name of its object."""
    found = {}
    for one in objects:
        spec = one["spec"]["jobTemplate"] if one["kind"] == "CronJob" else one
        if one["kind"] in ("Deployment", "DaemonSet", "Job", "CronJob"):
            found[one["metadata"]["name"]] = spec["spec"]["template"]
    return found


@pytest.mark.parametrize("values", [REQUIRED, EVERYTHING], ids=["required", "everything"])
def test_helm_lint_accepts_the_chart(values: tuple[str, ...]) -> None:
    run(tool("helm"), "lint", "--strict", CHART, *sets(values))


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [REQUIRED, EVERYTHING], ids=["required", "everything"])
def test_the_rendered_objects_are_valid(version: str, values: tuple[str, ...]) -> None:
    validated = [one for one in rendered(*values) if one["kind"] not in WITHOUT_SCHEMA]
    done = subprocess.run(
        [tool("kubernetes-validate"), "--strict", "-k", version, "-"],
        input=yaml.safe_dump_all(validated),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names_of(values: dict[str, Any]) -> set[str]:
    """Return the names of all values, without those in maps that the chart copies."""
    found = set(values)
    for name, value in values.items():
        if isinstance(value, dict) and name not in ("resources", "settings", "schedules"):
            found |= names_of(value)
    return found


def test_each_value_is_used_by_a_template() -> None:
    text = "".join(one.read_text() for one in sorted((CHART / "templates").iterdir()))
    names = names_of(yaml.safe_load((CHART / "values.yaml").read_text()))
    # Roles are strings of a list: `index .Values $role`.
    used = set(re.findall(r"\.(\w+)", text)) | set(re.findall(r'"(\w+)"', text))
    assert names - used == set()


def test_no_pod_is_root_or_writes_to_its_image(objects: list[dict[str, Any]]) -> None:
    for name, template in pods(objects).items():
        pod = template["spec"]
        # The files of pods belong to root.
        assert pod["securityContext"].get("runAsNonRoot", name == "one-agent"), name
        assert not pod["automountServiceAccountToken"], name
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name


def test_each_container_starts_a_command_that_exists(objects: list[dict[str, Any]]) -> None:
    started = {
        name: template["spec"]["containers"][0]["args"]
        for name, template in pods(objects).items()
        if "args" in template["spec"]["containers"][0]
    }
    assert len(started) == 13
    for words in started.values():
        check_command(words)


def test_each_account_and_volume_that_a_pod_names_is_defined(objects: list[dict[str, Any]]) -> None:
    accounts = {one["metadata"]["name"] for one in objects if one["kind"] == "ServiceAccount"}
    for name, template in pods(objects).items():
        pod = template["spec"]
        assert pod["serviceAccountName"] in accounts, name
        volumes = {one["name"] for one in pod["volumes"]}
        for container in pod["containers"]:
            assert {one["name"] for one in container["volumeMounts"]} == volumes, name


def test_each_role_has_a_service_a_budget_and_a_policy(objects: list[dict[str, Any]]) -> None:
    roles = {"gateway", "reconciler", "query", "console", "maintain", "certifier", "gc"}
    selectors = {"Service": "selector", "PodDisruptionBudget": "selector", "NetworkPolicy": ""}
    for kind in selectors:
        found = {one["metadata"]["name"] for one in objects if one["kind"] == kind}
        assert {f"one-{role}" for role in roles} <= found, kind
    labelled = [one["metadata"]["labels"] for one in pods(objects).values()]
    for one in objects:
        if one["kind"] == "Service":
            wanted = one["spec"]["selector"].items()
            assert any(wanted <= labels.items() for labels in labelled), one["metadata"]["name"]


def test_each_service_that_another_names_is_an_allowed_host(objects: list[dict[str, Any]]) -> None:
    """Services refuse a `Host` that they do not know (ADR 14)."""
    words = {
        name: one["spec"]["containers"][0].get("args", []) for name, one in pods(objects).items()
    }
    named = {
        word.rpartition("http://")[2]
        for args in words.values()
        for word in args
        if "=http://" in word
    }
    assert named == {"one-reconciler", "one-query"}
    for name in named:
        (hosts,) = (one for one in words[name] if one.startswith("--allowed-hosts="))
        assert name in hosts.partition("=")[2].split(",")


@pytest.mark.parametrize("secret", ["", "certificate"])
def test_each_service_is_scraped_once_over_the_protocol_that_it_serves(secret: str) -> None:
    values = (*REQUIRED, "serviceMonitor.enabled=true", f"gateway.tlsSecret={secret}")
    objects = rendered(*values)
    monitors = [one["spec"] for one in objects if one["kind"] == "ServiceMonitor"]
    for service in (one for one in objects if one["kind"] == "Service"):
        if "http" not in {port["name"] for port in service["spec"]["ports"]}:
            continue  # the addresses of the gateways, for the console
        role = service["metadata"]["labels"]["app.kubernetes.io/component"]
        (found,) = [one for one in monitors if selects(one["selector"], role)]
        (endpoint,) = found["endpoints"]
        wanted = "https" if secret and role == "gateway" else "http"
        assert endpoint.get("scheme", "http") == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((), ["--gateways=dns+http://one-gateway-pods:8080"]),
        (("gateway.tlsSecret=certificate",), []),
        (
            ("gateway.tlsSecret=certificate", "console.gatewayTlsName=gateways.example"),
            [
                "--gateways=dns+https://one-gateway-pods:8080",
                "--gateways-tls-name=gateways.example",
            ],
        ),
    ],
)
def test_the_console_reads_each_gateway_by_the_addresses_of_a_headless_service(
    values: tuple[str, ...], wanted: list[str]
) -> None:
    """A service with one address would mix the counters of the pods."""
    objects = rendered(*REQUIRED, *values)
    gateways = pods(objects)["one-gateway"]
    words = pods(objects)["one-console"]["spec"]["containers"][0]["args"]
    assert [word for word in words if word.startswith("--gateways")] == wanted
    (service,) = [one for one in objects if one["metadata"]["name"] == "one-gateway-pods"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"], "a gateway that is not ready is in trouble"
    assert service["spec"]["selector"].items() <= gateways["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    listening = gateways["spec"]["containers"][0]["ports"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in listening


def selects(selector: dict[str, Any], role: str) -> bool:
    """Return True if a monitor selects the service of a role."""
    return all(
        (role in one["values"]) == (one["operator"] == "In")
        for one in selector.get("matchExpressions", ())
    )


def test_retention_is_decided_by_a_job_with_another_account_than_gateways(
    objects: list[dict[str, Any]],
) -> None:
    """The role of a gateway may not write decisions about retention."""
    found = pods(objects)
    one = found["one-retention-1"]["spec"]
    assert one["containers"][0]["args"] == ["init", "--keep=90d"]
    assert one["serviceAccountName"] == "one-retention"
    assert found["one-prepare-1"]["spec"]["serviceAccountName"] == "one-gateway"
    assert "one-retention-1" not in pods(rendered(*REQUIRED))


def test_maintenance_leaves_the_tasks_of_other_roles_out(objects: list[dict[str, Any]]) -> None:
    words = {
        name: one["spec"]["containers"][0].get("args", []) for name, one in pods(objects).items()
    }
    tasks = {
        name: [one.removeprefix("--tasks=") for one in args if one.startswith("--tasks=")]
        for name, args in words.items()
    }
    assert tasks["one-maintain"] == ["retention", "queue", "noncurrent"]
    assert (tasks["one-certifier"], tasks["one-gc"]) == (["audit", "expire"], ["gc"])
    assert "--gc.plan" in words["one-certifier"]
    assert {"--gc.execute-only", "--gc.trusted-keys=key"} <= set(words["one-gc"])


def test_the_agent_reads_the_files_of_pods_and_keeps_its_spool_on_the_node() -> None:
    values = (*REQUIRED, "agent.enabled=true", "agent.keySecret=agent")
    template = pods(rendered(*values))["one-agent"]
    (container,) = template["spec"]["containers"]
    volumes = {one["name"]: one for one in template["spec"]["volumes"]}
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    for word, path in (("--paths=", "/var/log"), ("--spool=", "/var/lib/sluice-agent")):
        (option,) = (one for one in container["args"] if one.startswith(word))
        assert option.removeprefix(word).startswith(f"{path}/")
        assert "hostPath" in volumes[mounts[path]["name"]]
    assert mounts["/var/log"]["readOnly"]
    assert "--gateway=http://one-gateway" in container["args"]
    assert "--exclude=/var/log/pods/default_one-agent-*" in container["args"]
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_settings_are_the_file_that_sluice_reads(
    objects: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    (text,) = (one["data"]["sluice.toml"] for one in objects if one["kind"] == "ConfigMap")
    assert tomllib.loads(text)["gateway"]["workers"] == 2
    file = tmp_path_factory.mktemp("settings") / "sluice.toml"
    file.write_text(text)
    program = ROOT / ".venv" / "bin" / "sluice"
    shown = run(program, "config", "show", "maintain", "--json", SLUICE_CONFIG=str(file))
    found = {one["option"]: one["value"] for one in json.loads(shown)}
    assert found["--retention-days"] == "logs=90"


@pytest.mark.parametrize("page", ["docs/deploy.md", "docs/aws.md"])
def test_the_documented_values_render(page: str, tmp_path: Path) -> None:
    (block,) = (one for one in blocks_of(page) if one.language == "yaml")
    (tmp_path / "values.yaml").write_text(block.text)
    shown = run(tool("helm"), "template", "one", CHART, "--values", tmp_path / "values.yaml")
    (account,) = (
        one
        for one in yaml.safe_load_all(shown)
        if one["kind"] == "ServiceAccount" and one["metadata"]["name"] == "one-gateway"
    )
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].endswith("gateway")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("store=", "store"),
        ("principalsSecret=", "principalsSecret"),
        ("console.viewers=", "console.viewers"),
        ("gateway.replicas=0", "replicas"),
        ("retention.keep=90", "keep"),
        ("gateway.doors={http}", "doors"),
        ("gatway.replicas=3", "gatway"),
        ("certifier.enabled=true", "keySecret"),
        ("gc.enabled=true", "trustedKeys"),
        ("agent.enabled=true", "keySecret"),
    ],
)
def test_wrong_values_are_named(changed: str, named: str) -> None:
    done = subprocess.run(
        [tool("helm"), "template", "one", str(CHART), *sets((*REQUIRED, changed))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert named in done.stderr
