"""What a command imports: only what it needs, and one line if a package of an extra is missing."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.reconciler_seed import accept_logs

from sluice_cli.extras import PACKAGE_EXTRAS
from sluice_store.local import open_local_store

BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
from sluice_cli.main import run
sys.exit(run(sys.argv[2:]))
"""
EXTRAS = {
    "s3": "aioboto3,aiobotocore,boto3,botocore",
    "query": "pyarrow,deltalake,duckdb,plotext",
    "spark": "pyspark,delta,pandas,pyarrow,deltalake",
    "policies": "policy_sentry,z3",
    "doors": "cramjam,grpc,msgpack,opentelemetry,ptars",
    "gateway": "uvloop",
}
ALL = ",".join(PACKAGE_EXTRAS)
SETTINGS = Path(__file__).parents[2] / "golden" / "policies" / "settings.toml"


def without(packages: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import some packages."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, packages, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert without(ALL, tmp_path, "init").returncode == 0
    return tmp_path


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("query", ("query",)),
        ("query", ("query", "--metric", "cpu")),
        ("query", ("query", "serve", "--listen", "127.0.0.1:0")),
        ("spark", ("spark", "ingest", "--once")),
        ("spark", ("spark", "compact")),
        ("s3", ("reconciler", "--once", "--store", "s3://bucket/prefix?region=eu-west-1")),
        (
            "s3",
            (
                "gateway",
                "--listen",
                "127.0.0.1:0",
                "--store",
                "s3://bucket/prefix?region=eu-west-1",
            ),
        ),
        ("gateway", ("gateway",)),
        ("policies", ("policies", "lint", "--settings", str(SETTINGS))),
        ("policies", ("policies", "prove", "--settings", str(SETTINGS))),
    ],
)
def test_without_its_extra_a_command_is_one_line(
    folder: Path, extra: str, arguments: tuple[str, ...]
) -> None:
    done = without(EXTRAS[extra], folder, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"sluice[{extra}]" in done.stderr


@pytest.mark.parametrize("arguments", [("audit", "run"), ("gc", "plan")])
def test_without_pyarrow_audit_and_collection_are_one_line(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    done = without(ALL, folder, *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "install sluice[query]" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("query", "--help"),
        ("queue", "status"),
        ("reconciler", "--once"),
        ("rebuild", "--verify"),
        ("gaps",),
        ("batches",),
        ("agent", "init"),
        ("config", "show", "query"),
    ],
)
def test_these_commands_need_no_extra(folder: Path, arguments: tuple[str, ...]) -> None:
    done = without(ALL, folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert "install sluice" not in done.stderr


def test_explain_without_the_lake_shows_the_rest_and_the_extra(folder: Path) -> None:
    async def accept() -> str:
        async with open_local_store(folder / ".sluice") as store:
            one = await accept_logs(store, ["a line"], seq=0, at_ns=time.time_ns())
        return one.frame_sha256

    digest = asyncio.run(accept())
    assert without(ALL, folder, "reconciler", "--once").returncode == 0
    done = without(ALL, folder, "explain", digest)
    assert done.returncode == 0, done.stderr
    assert "manifest     accepted/v1/" in done.stdout
    assert "lake      unreadable: missing package: install sluice[query]" in done.stdout
    assert "rollups   other kind: Logs are not rolled up" in done.stdout


def test_an_agent_imports_no_decoder_store_exporter_or_command_line_library(folder: Path) -> None:
    """Without doors, syslog and health they would cost two fifths of the start."""
    unused = (
        f"{ALL},prometheus_client,sluice_store,sluice_doors,sluice_door_http,"
        "sluice_door_ports,sluice_gateway,sluice_lake,cyclopts,docstring_parser,rich,pygments,tomllib,ulid"
    )
    key = without(ALL, folder, "agent", "init", "--key", "k.pem", "--agent-id", "a")
    assert key.returncode == 0, key.stderr
    (folder / "one.log").write_text("")
    done = without(
        *(unused, folder, "agent", "run", "--once", "--gateway", "http://127.0.0.1:1"),
        *("--agent-id", "a", "--key", "k.pem", "--spool", "spool", "--paths", "one.log"),
        *("--host-metrics-s", "0", "--json"),
    )
    assert done.returncode == 0, done.stderr


def test_policies_are_rendered_without_the_sdk(folder: Path) -> None:
    arguments = ("policies", "render", "--settings", str(SETTINGS), "--out", "rendered")
    done = without(EXTRAS["s3"], folder, *arguments)
    assert done.returncode == 0, done.stderr


def test_a_query_imports_no_library_that_it_does_not_use(folder: Path) -> None:
    """They would take a third of the time of a query for one line."""

    async def accept() -> None:
        async with open_local_store(folder / ".sluice") as store:
            await accept_logs(store, ["a line"], seq=0, at_ns=time.time_ns())

    asyncio.run(accept())
    assert without("", folder, "reconciler", "--once").returncode == 0
    unused = "aiohttp", "numpy.ma", "pandas", "prometheus_client", "pyspark"
    script = f"""
import sys
from sluice_cli.main import run
code = run(["query"])
print("imported", sorted(set({unused}) & set(sys.modules)))
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert "a line" in done.stdout
    assert "imported []" in done.stdout


def test_every_package_of_an_extra_is_known() -> None:
    """`pyproject.toml` and the table agree on which extra installs what."""
    for extra, packages in EXTRAS.items():
        for package in packages.split(","):
            assert extra in PACKAGE_EXTRAS[package], package


def test_the_help_imports_no_library(tmp_path: Path) -> None:
    done = without("cyclopts,rich,structlog,msgspec,asyncio", tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "gateway" in done.stdout


@pytest.mark.parametrize(
    ("packages", "arguments"),
    [
        ("duckdb,numpy,pyarrow,aiohttp", ("query", "--help")),
        ("aiohttp,numpy,prometheus_client", ("reconciler", "--help")),
    ],
)
def test_the_help_of_a_command_imports_no_work(
    tmp_path: Path, packages: str, arguments: tuple[str, ...]
) -> None:
    done = without(packages, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("given", "used"), [(None, "1"), ("2", "2")])
def test_numpy_starts_no_threads(
    monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    """Each would spin for some 60 ms when a command starts, on every core of the machine."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    script = """
import os
import sluice_cli.main, numpy
print(os.environ["OPENBLAS_NUM_THREADS"], len(os.listdir("/proc/self/task")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    threads = 1 if used == "1" else min(2, os.cpu_count() or 1)
    assert done.stdout.split() == [used, str(threads)]
