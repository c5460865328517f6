"""What a command imports: only what it needs, and one line if a package of an extra is missing.

Commands of `sluice` in forks of one interpreter: which modules they import or miss.

A start of Python for each command would need most of the processor time of such a test.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest
from support.reconciler_seed import accept_logs

from sluice_cli.main import PACKAGE_EXTRAS
from sluice_protocol.distribution import install_command
from sluice_store.local import open_local_store

# Reads one request a line, and responds with one line. The child has the files of the request as
# its output; it reports its modules through a pipe.
SERVER = """
import json, os, signal, sys

class Block:
    def __init__(self, packages): self.packages = packages
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages or name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

class StopWhenReady:
    def __init__(self, stream, event): self.stream, self.event = stream, event
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        written = self.stream.write(text)
        if self.event in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return written

def run(request, report):
    os.chdir(request["folder"])
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if request["until"]:
        sys.stdout = StopWhenReady(sys.stdout, request["until"])
        sys.stderr = StopWhenReady(sys.stderr, request["until"])
    sys.meta_path.insert(0, Block(request["blocked"]))
    before = set(sys.modules)
    code = 1
    try:
        from sluice_cli.main import run
        code = run(request["arguments"])
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        loaded = [name for name, module in sys.modules.items() if module is not None]
        os.write(report, json.dumps(sorted(set(loaded) - before)).encode())
        os._exit(code)

for name in sys.argv[1:]:
    __import__(name)
for line in sys.stdin:
    request = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        run(request, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        modules = json.loads(pipe.read() or b"[]")
    _, status = os.waitpid(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), modules]), flush=True)
"""
# What every installation has and many commands import.
BASE = (
    "asyncio",
    "aiohttp.web",
    "cyclopts",
    "numpy",
    "prometheus_client",
    "rich.console",
    "structlog",
)


@dataclass(frozen=True)
class Done:
    """A command that has ended, and the modules that it has imported."""

    returncode: int
    stdout: str
    stderr: str
    modules: frozenset[str]


class Interpreter:
    """An interpreter that runs each command in a fork of itself."""

    def __init__(self, *preloaded: str) -> None:
        """Start it.

        Args:
            preloaded: Modules that it imports once; they are not among the modules of a command.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # numpy starts a thread for each core, and a fork has only one thread.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait(timeout=60)
        _pipe(self._process.stdout).close()

    def run(
        self, folder: Path, *arguments: str, blocked: Sequence[str] = (), until: str = ""
    ) -> Done:
        """Run a command.

        Args:
            folder: Its working directory.
            arguments: The words behind `sluice`.
            blocked: Packages and modules that it cannot import.
            until: Stop it with SIGTERM when it prints this; empty if it ends without.
        """
        outputs = [folder / ".stdout", folder / ".stderr"]
        request = {
            "folder": str(folder),
            "arguments": arguments,
            "blocked": blocked,
            "until": until,
            "stdout": str(outputs[0]),
            "stderr": str(outputs[1]),
        }
        requests, responses = _pipe(self._process.stdin), _pipe(self._process.stdout)
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        code, modules = json.loads(responses.readline())
        stdout, stderr = (path.read_text() for path in outputs)
        return Done(code, stdout, stderr, frozenset(modules))


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


EXTRAS = {
    "s3": ("aioboto3", "aiobotocore", "boto3", "botocore"),
    "query": ("pyarrow", "deltalake", "duckdb", "plotext"),
    "spark": ("pyspark", "delta", "pandas", "pyarrow", "deltalake"),
    "policies": ("policy_sentry", "z3"),
    "doors": ("cramjam", "grpc", "msgpack", "opentelemetry", "ptars"),
    "gateway": ("uvloop",),
}
ALL = tuple(PACKAGE_EXTRAS)
SETTINGS = Path(__file__).parents[2] / "golden" / "policies" / "settings.toml"


@pytest.fixture(scope="module")
def empty() -> Iterator[Interpreter]:
    """An interpreter that has imported nothing."""
    with Interpreter() as interpreter:
        yield interpreter


@pytest.fixture(scope="module")
def prepared() -> Iterator[Interpreter]:
    """An interpreter with the libraries of every installation, for tests about extras."""
    with Interpreter(*BASE) as interpreter:
        yield interpreter


@pytest.fixture(scope="module")
def first_store(prepared: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    assert prepared.run(folder, "init", blocked=ALL).returncode == 0
    return folder


@pytest.fixture
def folder(first_store: Path, tmp_path: Path) -> Path:
    """A folder with a new store."""
    return shutil.copytree(first_store, tmp_path / "one")


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("query", ("query",)),
        ("query", ("metrics", "cpu")),
        ("query", ("fields",)),
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
    prepared: Interpreter, folder: Path, extra: str, arguments: tuple[str, ...]
) -> None:
    done = prepared.run(folder, *arguments, blocked=EXTRAS[extra])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"pip install 'sluice-gateway[{extra}]'" in done.stderr


@pytest.mark.daily(1)
@pytest.mark.parametrize("arguments", [("audit", "run"), ("gc", "plan")])
def test_without_pyarrow_audit_and_collection_are_one_line(
    prepared: Interpreter, folder: Path, arguments: tuple[str, ...]
) -> None:
    done = prepared.run(folder, *arguments, blocked=ALL)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert install_command("query") in done.stderr


@pytest.mark.daily(2)
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
def test_these_commands_need_no_extra(
    prepared: Interpreter, folder: Path, arguments: tuple[str, ...]
) -> None:
    done = prepared.run(folder, *arguments, blocked=ALL)
    assert done.returncode == 0, done.stderr
    assert "pip install" not in done.stderr


def test_explain_without_the_lake_shows_the_rest_and_the_extra(
    prepared: Interpreter, folder: Path
) -> None:
    async def accept() -> str:
        async with open_local_store(folder / ".sluice") as store:
            one = await accept_logs(store, ["a line"], seq=0, at_ns=time.time_ns())
        return one.frame_sha256

    digest = asyncio.run(accept())
    assert prepared.run(folder, "reconciler", "--once", blocked=ALL).returncode == 0
    done = prepared.run(folder, "explain", digest, blocked=ALL)
    assert done.returncode == 0, done.stderr
    assert "manifest     accepted/v1/" in done.stdout
    assert "lake      unreadable: missing package: run `pip install" in done.stdout
    assert "rollups   other kind: Logs are not rolled up" in done.stdout


def test_policies_are_rendered_without_the_sdk(prepared: Interpreter, folder: Path) -> None:
    arguments = ("policies", "render", "--settings", str(SETTINGS), "--out", "rendered")
    done = prepared.run(folder, *arguments, blocked=EXTRAS["s3"])
    assert done.returncode == 0, done.stderr


def test_every_package_of_an_extra_is_known() -> None:
    """`pyproject.toml` and the table agree on which extra installs what."""
    for extra, packages in EXTRAS.items():
        for package in packages:
            assert extra in PACKAGE_EXTRAS[package], package


HELP = frozenset({"docstring_parser", "rich.console"})
PARSER = HELP | {"cyclopts"}
TEXT = frozenset({"rich.markdown", "markdown_it", "pygments"})
WEB = frozenset({"aiohttp", "yarl", "prometheus_client"})
LAKE = frozenset({"pyarrow", "duckdb", "deltalake", "pandas", "plotext"})
SPARK = frozenset({"pyspark", "delta", "py4j"})
SDK = frozenset({"aioboto3", "aiobotocore", "boto3", "botocore"})
DOORS = frozenset({"cramjam", "grpc", "msgpack", "opentelemetry", "ptars", "google.protobuf"})
POLICIES = frozenset({"z3", "policy_sentry"})
CERTIFICATES = frozenset({"cryptography.x509"})
WORK = WEB | LAKE | SPARK | SDK | DOORS | POLICIES | CERTIFICATES | {"numpy", "uvloop", "nacl"}
QUIET = WORK - {"yarl"} | {"structlog"}  # the settings of an agent parse URLs
"""What the help of a service does not need."""
HOLDER = LAKE | SPARK | SDK | DOORS | POLICIES | CERTIFICATES | TEXT
"""What no process on a directory needs without doors, searches or jobs."""
AGENT_RUN = (
    *("agent", "run", "--once", "--gateway", "http://127.0.0.1:1", "--agent-id", "a"),
    *("--key", "k.pem", "--spool", "spool", "--paths", "one.log", "--host-metrics-s", "0"),
)
LISTEN = ("--listen", "127.0.0.1:0")


def test_the_help_imports_no_library(empty: Interpreter, tmp_path: Path) -> None:
    done = empty.run(tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "gateway" in done.stdout
    assert sorted(done.modules & (QUIET | PARSER | TEXT | {"msgspec"})) == []


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (("--version",), QUIET | PARSER | TEXT),
        *(((command, "--help"), QUIET) for command in ("agent", "gateway", "reconciler")),
        *(((command, "--help"), QUIET) for command in ("query", "console", "status")),
        (("init", "--store", "file://./new"), WORK | TEXT),
        (("config", "show", "gateway", "--json"), WORK | TEXT),
        (("batches", "--json"), WORK | TEXT),
        (("reconciler", "--once", "--json"), HOLDER | HELP | {"uvloop", "nacl"}),
        (("maintain", "status", "--json"), WORK | TEXT),
        (("status", "--json"), HOLDER | {"aiohttp", "uvloop", "nacl"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_imports_no_library_that_it_does_not_use(
    empty: Interpreter, folder: Path, arguments: tuple[str, ...], unused: frozenset[str]
) -> None:
    """Each would be paid for by every start, health check and completion."""
    done = empty.run(folder, *arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1}, done.stderr  # 1: `status` found that nothing runs
    assert "sluice_cli.main" in done.modules
    assert sorted(done.modules & unused) == []


def key_of(interpreter: Interpreter, folder: Path) -> str:
    """Create the agent's key, and return the entry of the principals file."""
    made = interpreter.run(
        folder, "agent", "init", "--key", "k.pem", "--agent-id", "a", "--json", blocked=ALL
    )
    assert made.returncode == 0, made.stderr
    entry = json.loads(made.stdout)["principal"]
    assert isinstance(entry, str)
    return entry


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("command", "event", "unused"),
    [
        ("gateway", "gateway_listening", HOLDER | HELP),
        ("reconciler", "reconciler_listening", HOLDER | HELP | {"uvloop"}),
        ("console", "console_listening", HOLDER | {"uvloop", "nacl"}),
    ],
)
def test_a_service_imports_no_library_that_it_does_not_use(
    empty: Interpreter, folder: Path, command: str, event: str, unused: frozenset[str]
) -> None:
    (folder / "principals.toml").write_text(key_of(empty, folder))
    done = empty.run(folder, command, *LISTEN, until=event)
    assert event in done.stderr
    assert sorted(done.modules & unused) == []


def test_an_agent_imports_no_decoder_store_or_exporter(empty: Interpreter, folder: Path) -> None:
    """Without doors, syslog and health they would cost two fifths of the start."""
    key_of(empty, folder)
    (folder / "one.log").write_text("")
    done = empty.run(folder, *AGENT_RUN, "--json")
    assert done.returncode == 0, done.stderr
    others = {"sluice_doors.api", "sluice_doors.decoded"}
    others |= {"sluice_gateway", "sluice_lake", "prometheus_client", "tomllib", "ulid", "uvloop"}
    # Options check the form of a store's URL; that module imports no store.
    stores = {name for name in done.modules if name.startswith("sluice_store.")}
    assert stores <= {"sluice_store.url"}
    assert sorted(done.modules & (HOLDER | HELP | others)) == []
    assert not any(name.startswith("rich") for name in done.modules)


def test_a_query_imports_no_library_that_it_does_not_use(
    empty: Interpreter, prepared: Interpreter, folder: Path
) -> None:
    """They would take a third of the time of a query for one line."""

    async def accept() -> None:
        async with open_local_store(folder / ".sluice") as store:
            await accept_logs(store, ["a line"], seq=0, at_ns=time.time_ns())

    asyncio.run(accept())
    assert prepared.run(folder, "reconciler", "--once").returncode == 0
    done = empty.run(folder, "query")
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert "a line" in done.stdout
    unused = {"numpy.ma", "pandas", *WEB} | SPARK | SDK | DOORS | POLICIES | CERTIFICATES | TEXT
    assert sorted(done.modules & unused) == []


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
