"""What every test shares."""

import asyncio
import atexit
import gc
import inspect
import os
import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
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

# Services of one test are not found by commands of another one.
_RUNTIME = TemporaryDirectory(prefix="sluice-runtime-")
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME.name

# A JVM of a test runs for seconds: the second compiler and a collector with threads would cost more
# than they save, and an eighth of a short job is the verification of the classes of Spark.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(
        _options,
        "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
        " -XX:+UseSerialGC",
    )


class FileOnDemand(pytest.Item):
    """A file of tests, which one parallel worker collects when the file's turn comes.

    xdist distributes collected items, so each worker would import and collect all files, which
    takes 15 s of processor time.
    """

    following: pytest.Item | None = None  # the item that this worker runs next, if any

    def runtest(self) -> None:
        """Collect the file and run the tests that the options select."""
        session = self.session
        with _no_garbage_collection():
            module = pytest.Module.from_parent(self.parent, path=self.path)
            tests = list(session.genitems(module))
            self.config.hook.pytest_collection_modifyitems(
                session=session, config=self.config, items=tests
            )
        at = session.items.index(self)
        for test, following in zip(tests, [*tests[1:], self.following], strict=False):
            session.items[at] = test  # where xdist looks up the item of a report
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[at] = self
        if not tests:  # then nothing has ended the folders that the next file is not in
            session._setupstate.teardown_exact(self.following)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Let the workers of `--dist loadfile` collect on demand, unless single tests are named."""
    config = node.config
    named = any("::" in argument for argument in config.args)
    node.workerinput["files_on_demand"] = config.getoption("dist") == "loadfile" and not named


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> FileOnDemand | None:
    """Represent a file by an item in a worker that collects on demand."""
    if not getattr(parent.config, "workerinput", {}).get("files_on_demand"):
        return None
    nodeid = module_path.relative_to(parent.config.rootpath).as_posix()
    name = module_path.name
    file: FileOnDemand = FileOnDemand.from_parent(
        parent, name=name, path=module_path, nodeid=nodeid
    )
    file.add_marker(pytest.mark.timeout(0))  # the limit is for each of its tests
    return file


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, FileOnDemand):
        return None
    item.following = nextitem
    item.runtest()
    return True


class SharedSparkScheduling(LoadFileScheduling):
    """Runs each file of tests in one process, and all files that use `spark` in the same one.

    A session starts a JVM, whose first jobs cost far more than later ones.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = super()._split_scope(nodeid)
        uses_spark = "spark: Any" in _text(self.config.rootpath / path)
        return "files with the fixture spark" if uses_spark else path

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker a second file when it runs one, and not earlier.

        A worker begins a file when it knows the next one, also one that replaces a crashed worker.
        """
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            if node.shutting_down:
                return
            self._assign_work_unit(node)
        if not self.workqueue:
            super()._reschedule(node)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


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
    found = _FILE_MARKS.search(_text(collection_path))
    return True if found and excluded & set(re.findall(r"mark\.(\w+)", found[0])) else None


_FILE_MARKS = re.compile(r"^pytestmark = (?:\[.*?\]|[^\[\n]*)$", re.MULTILINE | re.DOTALL)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    items: list[pytest.Item],
) -> Generator[None, object, object]:
    """Run the slowest files first: parallel workers then end at about the same time.

    The options `-m` and `-k` select among the tests of a file, after it was collected.
    """
    files = [item for item in items if isinstance(item, FileOnDemand)]
    items[:] = [item for item in items if not isinstance(item, FileOnDemand)]
    _mark_long_cases(items)
    result = yield
    items.extend(sorted(files, key=lambda file: (_order(file.path), file.path)))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Exit as if no test had been collected, if the files on demand contain no selected test."""
    result = yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal and not terminal.stats:
        session.testscollected = 0
    return result


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


def _order(path: Path) -> int:
    """Return 0 for files with proofs and for those that need Spark, else 1."""
    return 0 if path.name == "test_prove.py" or "mark.spark" in _text(path) else 1


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Suspend the collector of cycles, which would take half of the time of a collection of tests.

    A collection creates much and drops nothing.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect all tests with the collector of cycles suspended.

    Modules and collected tests live as long as the process, so later collections do not examine
    them.
    """
    with _no_garbage_collection():
        result = yield
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries report what is left at the end as a leak
    return result


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
