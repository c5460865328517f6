"""What every test shares."""

import asyncio
import atexit
import gc
import inspect
import os
import re
import signal
from collections import defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import structlog
import uvloop
from hypothesis import HealthCheck, settings
from support.repetitions import times
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from sluice_gc.settings import default_key_file
from sluice_gc.signing_keys import make_key_file

if TYPE_CHECKING:
    from support.store_versitygw import Server

# A slow machine fails no test: speed is measured in benchmarks.
# `make test-long` runs many more examples of each property that sets no `max_examples`,
# and four times as many of the others: `support.repetitions.examples`.
_ALLOWED = [HealthCheck.too_slow]
settings.register_profile("sluice", deadline=None, max_examples=12, suppress_health_check=_ALLOWED)
settings.register_profile(
    "long", deadline=None, max_examples=times(200), suppress_health_check=_ALLOWED
)
settings.load_profile("sluice")

# The processes of tests start faster with compiled modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that is no terminal starts its background jobs without SIGINT, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Services of one test are not found by commands of another one.
_RUNTIME = TemporaryDirectory(prefix="sluice-runtime-")
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME.name
# Commands find an auditor's key there, on every machine: the fixture `auditor_key` creates it.
os.environ["XDG_STATE_HOME"] = f"{_RUNTIME.name}/state"

# A JVM of a test runs for seconds: the second compiler and a collector with threads would cost more
# than they save, and an eighth of a short job is the verification of the classes of Spark.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(
        _options,
        "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
        " -XX:+UseSerialGC",
    )


class SharedSparkScheduling(LoadFileScheduling):
    """Runs each file of tests in one process, and all files that use `spark` in the same one.

    A session starts a JVM, whose first jobs cost far more than later ones.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        uses_spark = _uses_spark(self.config.rootpath / path)
        return "files with the fixture spark" if uses_spark else path

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process; the test in which it ended is not run again, as it could end each."""
        units = self.assigned_work[node].values()
        ended = next((name for unit in units for name, done in unit.items() if not done), None)
        if ended is not None:
            self.assigned_work[node][self._split_scope(ended)][ended] = True
        super().remove_node(node)
        return ended

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process more work, unless it replaces another one and still collects its tests."""
        if node in self.registered_collections:
            super()._reschedule(node)


@cache
def _uses_spark(path: Path) -> bool:
    return "spark: Any" in path.read_text(encoding="utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> SharedSparkScheduling | None:
    return SharedSparkScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a file if `-m` excludes a mark of the whole file: each worker would import it."""
    excluded = set(re.findall(r"\bnot (\w+)", config.option.markexpr))
    if not excluded or "or" in config.option.markexpr.split() or collection_path.suffix != ".py":
        return None
    found = _FILE_MARKS.search(collection_path.read_text(encoding="utf-8"))
    return True if found and excluded & set(re.findall(r"mark\.(\w+)", found[0])) else None


_FILE_MARKS = re.compile(r"^pytestmark = (?:\[.*?\]|[^\[\n]*)$", re.MULTILINE | re.DOTALL)


def pytest_configure(config: pytest.Config) -> None:
    """Collect the folders in a different order in each worker.

    In a new checkout each file of tests is compiled by the first worker that collects it. Workers
    that collected in one order would all compile the same file at the same time.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    ignored = {config.rootpath / path for path in config.option.ignore or ()}
    places = {path.parent for path in (config.rootpath / config.args[0]).rglob("test_*.py")}
    folders = sorted(str(path) for path in places if ignored.isdisjoint({path, *path.parents}))
    first = len(folders) * int(worker["workerid"][2:]) // worker["workercount"]
    config.args = [*folders[first:], *folders[:first]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first: parallel workers then end at about the same time."""
    _mark_long_cases(items)
    items.sort(key=lambda item: (_order(item), item.path))


def _mark_long_cases(items: list[pytest.Item]) -> None:
    """Mark the cases of a test `long` that its mark `daily` leaves to `make test-long`.

    The daily ones are spread evenly, because neighbours in a matrix are alike.
    """
    functions = defaultdict(list)
    for item in items:
        daily = item.get_closest_marker("daily")
        if daily and not item.get_closest_marker("long"):
            functions[item.nodeid.partition("[")[0], daily.args[0]].append(item)
    for (_, count), cases in functions.items():
        kept = {len(cases) * at // count for at in range(count)}
        for at, case in enumerate(cases):
            if at not in kept:
                case.add_marker("long")


def _order(item: pytest.Item) -> int:
    """Return 0 for the policy mutants of the long run, 1 for Spark and other proofs, else 2."""
    proves = item.path.name == "test_prove.py"
    if proves and item.get_closest_marker("long"):
        return 0
    return 1 if proves or item.get_closest_marker("spark") else 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the collector of cycles, which would take half of the time.

    Collection creates much and drops nothing. Modules and collected tests live as long as the
    process, so later collections do not examine them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # libraries report what is left at the end as a leak


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in a new event loop: for the gateway that of the gateway."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    of_gateway = pyfuncitem.path.parent.name == "gateway" and "unit" not in pyfuncitem.path.parts
    names = inspect.signature(pyfuncitem.obj).parameters
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if of_gateway else None) as runner:
        runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def moto() -> Iterator["Server"]:
    """The S3 of ordinary tests, once for each file: moto's server, with credentials for it."""
    from support.store_buckets import moto_with_credentials  # noqa: PLC0415 - most tests need no moto

    with moto_with_credentials() as server:
        yield server


@pytest.fixture(autouse=True, scope="session")
def auditor_key() -> None:
    """Create the key that commands use which name none."""
    make_key_file(default_key_file())


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command run in this process sets logs up; the next test must not write to its file."""
    yield
    plain_logs()


def plain_logs() -> None:
    """Print events as one line each: structlog would draw each exception with its source lines."""
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.set_exc_info,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ]
    )


plain_logs()
