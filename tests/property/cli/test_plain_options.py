"""The quick start of the agent reads a command line exactly as the command-line library does."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cyclopts import CycloptsError
from hypothesis import example, given
from hypothesis import strategies as st

from sluice_agent.settings import AgentSettings, WhenFull
from sluice_cli import agent_run
from sluice_cli.application import build
from sluice_cli.settings_file import read_file
from sluice_protocol.errors import BadUsage

Read = tuple[AgentSettings, bool]
Toml = str | int | float | bool | list[str]

NAMES = [one.name for one in dataclasses.fields(AgentSettings)]
FREQUENT = ["paths", "once", "batch_bytes", "batch_age_s", "key", "when_full", "doors", "agent_id"]
names = st.sampled_from([*NAMES, *FREQUENT * 4, "json", "gatewy"])
texts = st.sampled_from(
    [
        *("a", "http://h:1", "/var/log/*.log", "a b", "k=v", "k=v=w", "é", "a,b", "~/x", "-", "--"),
        *("5", "0.5", "007", "1e3", "0x10", "1_000", "٣", "-5", "+5", "1.", ".5", "9" * 20, "nan"),
        *("block", "drop_newest", "drop-newest", "BLOCK", "otlp", "json", "otlp json", "otlp,json"),
        *("none", "Null", "true", "1", "no", "True", "", " ", " x", "x ", "--once", "-x", "\n"),
        *('["a"]', "[ab]*.log", "{}", '"', "'a'", "=", "5 6"),
    ]
)
values: st.SearchStrategy[Toml] = st.one_of(
    texts, st.lists(texts, max_size=3), st.booleans(), st.integers(-5, 10**7), st.just(0.5)
)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    words: list[str] = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(names)
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


@contextmanager
def sources(variables: Mapping[str, str], table: Mapping[str, Toml]) -> Iterator[None]:
    """Set environment variables and a settings file; strings and lists of JSON are TOML too."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SLUICE_")]:
            patch.delenv(name)
        path = Path(folder, "sluice.toml")
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in table.items()]
        path.write_text("[agent.run]\n" + "".join(lines))
        patch.setenv("SLUICE_CONFIG", str(path))
        for name, value in variables.items():
            patch.setenv(f"SLUICE_AGENT_RUN_{name.upper()}", value)
        yield


def quickly(words: list[str]) -> Read | str | None:
    try:
        return agent_run.read_settings(words, agent_run.table_of(read_file()[1]))
    except BadUsage as error:
        return str(error)


def by_the_library(words: list[str]) -> Read | str:
    try:
        _, bound, _ = build().parse_args(
            ["agent", "run", *words], exit_on_error=False, print_error=False
        )
    except CycloptsError as error:
        return f"refused: {error}"
    except BadUsage as error:
        return str(error)
    return bound.arguments["settings"], bound.arguments.get("json", False)


@given(
    words=command_lines(),
    variables=st.dictionaries(names, texts, max_size=2),
    table=st.dictionaries(names, values, max_size=2),
    gateway=st.sampled_from([["--gateway", "http://h:1"]] * 5 + [[]]),
)
@example(
    words=[], variables={"paths": "a b"}, table={"paths": ["c"]}, gateway=["--gateway=http://h:1"]
)
@example(
    words=["--paths", "a"], variables={"paths": "b"}, table={}, gateway=["--gateway=http://h:1"]
)
@example(
    words=["--once", "--json"], variables={}, table={"once": False}, gateway=["--gateway", "a"]
)
def test_both_read_the_same(
    words: list[str], variables: dict[str, str], table: dict[str, Toml], gateway: list[str]
) -> None:
    with sources(variables, table):
        read = quickly([*gateway, *words])
        if read is not None:
            assert read == by_the_library([*gateway, *words])


def test_usual_command_lines_are_read_quickly() -> None:
    """Otherwise the comparison above would compare nothing."""
    words = [
        *("--gateway", "http://a:1,http://b:1", "--spool=s", "--paths", "/a/*", "--paths", "/b/*"),
        *("--once", "--batch-age-s", "0.5", "--uploads", "2", "--when-full", "drop_newest"),
        *("--doors", "otlp", "--doors", "json", "--json"),
    ]
    variables = {"key": "k.pem", "host_metrics_s": "0", "exclude": "*.gz *.tmp"}
    table: dict[str, Toml] = {"agent-id": "a", "resource": ["k=v"], "freshness_s": 60}
    with sources(variables, table):
        read = quickly(words)
        assert read == by_the_library(words)
    assert read == (
        AgentSettings(
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
        True,
    )


@pytest.mark.parametrize(
    "words", [["--help"], ["--gatewy", "x"], ["--gateway", "http://h:1", "--uploads", "two"], []]
)
def test_the_library_words_errors_and_help(words: list[str]) -> None:
    with sources({}, {}):
        assert quickly(words) is None


@pytest.mark.parametrize(
    ("variable", "value"), [("SLUICE_AGENT_RUN_ONCEE", "1"), ("SLUICE_GATWAY_LISTEN", "x")]
)
def test_the_library_words_unknown_variables(variable: str, value: str) -> None:
    with sources({}, {}), pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, value)
        assert quickly(["--gateway", "http://h:1"]) is None
