"""`sluice verify` against real gateways: what it records and checks, and what it refuses."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import CommandResult, sluice
from support.gateway import GatewayProcess, start_gateways

from sluice_cli.verify.checks import find_violations, read_uploads
from sluice_cli.verify.state import RunState

MINUTES = "0.05"


@dataclass(frozen=True)
class Deployment:
    """A folder with a store, the key of the agent, and two gateways."""

    folder: Path
    gateways: list[GatewayProcess]

    @property
    def urls(self) -> str:
        return ",".join(f"http://127.0.0.1:{one.port}" for one in self.gateways)

    def verify(self, *more: str) -> CommandResult:
        given = dict(zip(more[::2], more[1::2], strict=True))
        words = {"--against": self.urls, "--key": "verify.pem", "--minutes": MINUTES} | given
        return sluice(
            "verify", *(word for pair in words.items() for word in pair), folder=self.folder
        )


def deployed(folder: Path, *init: str, flags: tuple[str, ...] = (), count: int = 1) -> Deployment:
    assert sluice("init", *init, folder=folder).returncode == 0
    made = sluice("agent", "init", "--key", "verify.pem", "--agent-id", "verify", folder=folder)
    principals = folder / "principals.toml"
    principals.write_text(made.stdout)
    store = f"file://{folder}/.sluice"
    return Deployment(folder, start_gateways(count, folder, store, principals, *flags))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = deployed(tmp_path_factory.mktemp("verify"), count=2)
    yield made
    for one in made.gateways:
        one.kill()


def test_a_deployment_without_faults_keeps_every_promise(deployment: Deployment) -> None:
    """Each kind of try occurs, the history is complete, and its records can be hidden."""
    done = deployment.verify()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 broken promises; history: sluice-verify-" in done.stdout
    (history,) = deployment.folder.glob("sluice-verify-*")
    uploads = read_uploads(history / "history.jsonl")
    results = Counter(one.result for one in uploads)
    assert results.keys() >= {"new", "duplicate", "conflict"}
    facts = [json.loads(line) for line in (history / "state.jsonl").read_text().splitlines()]
    kinds = Counter(one["kind"] for one in facts)
    assert kinds.keys() >= {"manifest", "quarantine", "row"}
    assert json.loads((history / "meta.json").read_text())["unread"] == []
    empty = RunState(manifests=(), gaps=(), rows=(), reasons=())
    assert len(list(find_violations(uploads, empty))) >= results["new"]
    command = done.stdout.splitlines()[-1].partition(": sluice ")[2]
    words = command.replace('"', "\0").split("\0")
    hidden = sluice(*words[0].split(), words[1], "--dry-run", "--json", folder=deployment.folder)
    counted = json.loads(hidden.stdout)["preview"]["matches"]
    assert sum(one["records"] for one in counted) == kinds["row"] + 2  # the first of each gateway


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--against", "http://127.0.0.1:1", "no response: check that a gateway listens"),
        ("--against", "gateway:80", "--against must be base URLs"),
        ("--key", "other.pem", "the gateway refuses this agent"),
        ("--key", "missing.pem", "missing.pem"),
        ("--minutes", "0", "minutes must be above 0"),
        ("--store", "file://./other", "this store does not contain"),
        ("--store", "file://./nothing", "no store"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_recorded(
    option: str, value: str, problem: str, deployment: Deployment
) -> None:
    sluice("init", "--store", "file://./other", folder=deployment.folder)
    sluice("agent", "init", "--key", "other.pem", folder=deployment.folder)
    before = {path.name for path in deployment.folder.iterdir()}
    done = deployment.verify(option, value)
    assert done.returncode != 0
    assert problem in done.stderr
    assert {path.name for path in deployment.folder.iterdir()} <= before | {"other"}


def test_another_server_is_named(deployment: Deployment) -> None:
    """A service of the same deployment is not a gateway."""
    with deployment.gateways[0].log.open() as log:
        assert "gateway_listening" in log.read()
    done = deployment.verify("--against", f"{deployment.urls.partition(',')[0]}/v1")
    assert done.returncode != 0
    assert "the response is not that of a gateway" in done.stderr


def test_a_gateway_with_a_spool_is_checked_after_its_transfer(tmp_path: Path) -> None:
    spool = ("--spool", f"file://{tmp_path}/spool", "--collector-id", "site-7")
    init = ("--acceptance", "local_spool", "--spool-writer", "site-7")
    made = deployed(tmp_path, *init, flags=spool)
    try:
        done = made.verify()
    finally:
        made.gateways[0].kill()
    assert done.returncode == 0, done.stdout + done.stderr
