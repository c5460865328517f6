"""A plain command line is read exactly as the command-line library reads it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cyclopts import CycloptsError
from hypothesis import example, given
from hypothesis import strategies as st

from sluice_agent.settings import AgentSettings, WhenFull
from sluice_cli import agent_run, gateway_run, reconciler_run
from sluice_cli.application import build
from sluice_cli.plain_commands import PlainCommand, read_arguments, read_command
from sluice_gateway.settings import GatewaySettings
from sluice_protocol.errors import BadUsage, NoStore
from sluice_reconciler.settings import ReconcilerOptions

Read = dict[str, object]
Toml = str | int | float | bool | list[str]


@dataclass(frozen=True)
class Case:
    """A command, and the options that are generated often."""

    path: tuple[str, ...]
    plain: PlainCommand
    frequent: tuple[str, ...]
    required: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [*self.plain.kinds, *self.frequent * 4, "gatewy"]


AGENT = Case(
    ("agent", "run"),
    agent_run.PLAIN,
    ("paths", "once", "spool_bytes", "batch_age_s", "key", "when_full", "doors", "agent_id"),
    ("--gateway", "http://h:1"),
)
GATEWAY = Case(
    ("gateway",),
    gateway_run.PLAIN,
    (
        "store",
        "listen",
        "workers",
        "doors",
        "tls_key",
        "skip_probe",
        "drain_time_s_max",
    ),
)
RECONCILER = Case(
    ("reconciler",),
    reconciler_run.PLAIN,
    ("store", "once", "inventory", "listen", "poll_s"),
)
CASES = (AGENT, GATEWAY, RECONCILER)
texts = st.sampled_from(
    [
        *("a", "http://h:1", "/var/log/*.log", "a b", "k=v", "k=v=w", "é", "a,b", "~/x", "-", "--"),
        *("5", "0.5", "007", "1e3", "0x10", "1_000", "٣", "-5", "+5", "1.", ".5", "9" * 20, "nan"),
        *("block", "drop_newest", "drop-newest", "BLOCK", "otlp", "json", "otlp json", "otlp,json"),
        *("none", "Null", "true", "1", "no", "True", "", " ", " x", "x ", "--once", "-x", "\n"),
        *('["a"]', "[ab]*.log", "{}", '"', "'a'", "=", "5 6"),
    ]
)
stores = st.sampled_from(["a", "file:///b", "", "-x"])
values: st.SearchStrategy[Toml] = st.one_of(
    texts, st.lists(texts, max_size=3), st.booleans(), st.integers(-5, 10**7), st.just(0.5)
)


@dataclass(frozen=True)
class Sources:
    """What an operator wrote: words, variables by option, keys of the table, and shared keys."""

    case: Case
    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    table: dict[str, Toml] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    shared_variables: dict[str, str] = field(default_factory=dict)


@st.composite
def command_lines(draw: st.DrawFn, case: Case) -> list[str]:
    words: list[str] = list(draw(st.sampled_from([case.required] * 5 + [()])))
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(case.names))
        option = "--" + (draw(st.sampled_from([name.replace("_", "-")] * 5 + [name, f"no-{name}"])))
        match draw(st.sampled_from(["separate", "separate", "equals", "flag", "stray"])):
            case "separate":
                words += [option, draw(texts)]
            case "equals":
                words.append(f"{option}={draw(texts)}")
            case "flag":
                words.append(option)
            case _:
                words.append(draw(texts))
    return words


@st.composite
def all_sources(draw: st.DrawFn) -> Sources:
    case = draw(st.sampled_from(CASES))
    names = st.sampled_from(case.names)
    return Sources(
        case,
        draw(command_lines(case)),
        variables=draw(st.dictionaries(names, texts, max_size=2)),
        table=draw(st.dictionaries(names, values, max_size=2)),
        shared=draw(st.dictionaries(st.just("store"), stores)),
        shared_variables=draw(st.dictionaries(st.just("SLUICE_STORE"), stores)),
    )


@contextmanager
def written(given: Sources) -> Iterator[None]:
    """Set environment variables and a settings file; strings and lists of JSON are TOML too."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SLUICE_")]:
            patch.delenv(name)
        path = Path(folder, "sluice.toml")
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in given.shared.items()]
        lines += [f"[{'.'.join(given.case.path)}]\n"]
        lines += [f"{name} = {json.dumps(value)}\n" for name, value in given.table.items()]
        path.write_text("".join(lines))
        patch.setenv("SLUICE_CONFIG", str(path))
        for name, value in given.variables.items():
            patch.setenv(f"SLUICE_{'_'.join(given.case.path)}_{name}".upper(), value)
        for name, value in given.shared_variables.items():
            patch.setenv(name, value)
        yield


def quickly(given: Sources) -> Read | str | None:
    with written(given):
        try:
            return read_arguments(given.case.plain, given.case.path, given.words)
        except BadUsage as error:
            return str(error)


def by_the_library(given: Sources) -> Read | str:
    with written(given):
        try:
            _, bound, _ = build().parse_args(
                [*given.case.path, *given.words], exit_on_error=False, print_error=False
            )
        except CycloptsError as error:
            return f"refused: {error}"
        except BadUsage as error:
            return str(error)
    bound.apply_defaults()
    return dict(bound.arguments)


def agent_of(words: list[str], **others: Any) -> Sources:
    return Sources(AGENT, ["--gateway", "http://h:1", *words], **others)


@given(all_sources())
@example(agent_of([], variables={"paths": "a b"}, table={"paths": ["c"]}))
@example(agent_of(["--paths", "a"], variables={"paths": "b"}))
@example(agent_of(["--once", "--json"], table={"once": False}))
@example(
    Sources(
        GATEWAY,
        [],
        variables={"store": "a"},
        table={"store": "b"},
        shared={"store": "c"},
        shared_variables={"SLUICE_STORE": "d"},
    )
)
@example(Sources(GATEWAY, [], variables={"store": "a"}, table={"store": "b"}))
@example(Sources(RECONCILER, [], table={"store": "b"}, shared={"store": "c"}))
@example(Sources(RECONCILER, [], shared={"store": "c"}))
def test_both_read_the_same(given: Sources) -> None:
    read = quickly(given)
    if read is not None:
        assert read == by_the_library(given)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (
            Sources(
                AGENT,
                [
                    *("--gateway", "http://a:1,http://b:1", "--spool=s", "--paths", "/a/*"),
                    *("--paths", "/b/*", "--once", "--batch-age-s", "0.5", "--uploads", "2"),
                    *("--when-full", "drop_newest", "--doors", "otlp", "--doors", "json", "--json"),
                ],
                variables={"key": "k.pem", "host_metrics_s": "0", "exclude": "*.gz *.tmp"},
                table={"agent-id": "a", "resource": ["k=v"], "freshness_s": 60},
            ),
            {
                "settings": AgentSettings(
                    gateway="http://a:1,http://b:1",
                    spool=Path("s"),
                    paths=("/a/*", "/b/*"),
                    once=True,
                    batch_age_s=0.5,
                    uploads=2,
                    when_full=WhenFull.DROP_NEWEST,
                    doors=("otlp", "json"),
                    key=Path("k.pem"),
                    host_metrics_s=0.0,
                    exclude=("*.gz", "*.tmp"),
                    agent_id="a",
                    resource=("k=v",),
                    freshness_s=60.0,
                ),
                "json": True,
            },
        ),
        (
            Sources(
                GATEWAY,
                ["--listen", "127.0.0.1:0", "--skip-probe", "--doors", "otlp", "--workers=2"],
                variables={"principals": "p.toml"},
                table={"connections_max": 5},
                shared={"store": "file://./a"},
            ),
            {
                "store": "file://./a",
                "settings": GatewaySettings(
                    listen="127.0.0.1:0",
                    skip_probe=True,
                    doors=("otlp",),
                    workers=2,
                    principals=Path("p.toml"),
                    connections_max=5,
                ),
            },
        ),
        (
            Sources(
                RECONCILER,
                ["--once", "--json", "--store", "file:///a"],
                shared_variables={"SLUICE_STORE": "file:///b"},
            ),
            {
                "store": "file:///a",
                "once": True,
                "inventory": None,
                "settings": ReconcilerOptions(),
                "json": True,
            },
        ),
    ],
    ids=["agent", "gateway", "reconciler"],
)
def test_usual_command_lines_are_read_quickly(given: Sources, read: Read) -> None:
    """Otherwise the comparison above would compare nothing."""
    assert quickly(given) == by_the_library(given) == read


@pytest.mark.parametrize(
    "given",
    [
        Sources(AGENT, ["--help"]),
        Sources(AGENT, ["--gatewy", "x"]),
        agent_of(["--uploads", "two"]),
        Sources(AGENT, []),
        Sources(GATEWAY, ["--help"]),
        Sources(GATEWAY, ["--doors", "none"]),
        Sources(RECONCILER, ["status"]),
    ],
)
def test_the_library_words_errors_and_help(given: Sources) -> None:
    assert quickly(given) is None


@pytest.mark.parametrize(
    ("variable", "value"), [("SLUICE_AGENT_RUN_ONCEE", "1"), ("SLUICE_GATWAY_LISTEN", "x")]
)
def test_the_library_words_unknown_variables(variable: str, value: str) -> None:
    assert quickly(agent_of([], shared_variables={variable: value})) is None


@pytest.mark.parametrize("command", ["gateway", "reconciler"])
def test_a_missing_store_is_refused(tmp_path: Path, command: str) -> None:
    with written(Sources(GATEWAY, [])), pytest.raises(NoStore, match="no store here"):
        read_command([command, "--store", f"file://{tmp_path}/none"])
