"""A stock Prometheus evaluates PromQL over remote read as over its own copy of the samples.

Among the samples are markers of the end of a series and NaN with other bits.
"""

import asyncio
import itertools
import subprocess
from pathlib import Path

import pytest
from support.prometheus_engines import (
    PROGRAMS,
    PROMTOOL,
    TwoEngines,
    deliver_written,
    same,
    talk_to_engines,
)
from support.promql import STEP_MS, STEPS, Questions, written_series
from support.query_lake import DAY0_NS, deployment
from support.remote_read import Series
from support.spark_lake import Deployment

pytestmark = [pytest.mark.clients]

START_MS = DAY0_NS // 1_000_000
END_MS = START_MS + STEPS * STEP_MS
SHORT, LONG = 50, 1_000


@pytest.fixture(scope="module")
def written() -> Series:
    return written_series(START_MS)


@pytest.fixture(scope="module")
def place(written: Series, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The samples, half of them pending."""
    made = deployment(Path(tmp_path_factory.mktemp("engine")))
    deliver_written(made, written, at_ns=DAY0_NS, ingested=2)
    return made


def compare_questions(
    name: str, place: Deployment, written: Series, folder: Path, *, count: int, seed: int
) -> None:
    async def story(both: TwoEngines) -> None:
        filled = 0
        for number, question in enumerate(itertools.islice(Questions(seed), count)):
            at_s = (START_MS + (END_MS - START_MS) * (number % 10 + 1) // 10) // 1000
            if number % 2:
                given = {"start": str(at_s - 1800), "end": str(at_s), "step": "300"}
                own, remote = await both.both("query_range", query=question, **given)
            else:
                own, remote = await both.both("query", query=question, time=str(at_s))
            assert own["status"] == remote["status"], (question, own, remote)
            if own["status"] == "success":
                left, right = own["data"]["result"], remote["data"]["result"]
                assert same(left, right), (question, left, right)
                filled += bool(left)
        assert filled > count // 2

    talk_to_engines(name, place, written, folder, story)


@pytest.mark.parametrize("name", PROGRAMS)
def test_some_questions_have_equal_answers(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    compare_questions(name, place, written, tmp_path, count=SHORT, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_thousand_questions_have_equal_answers(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    compare_questions(name, place, written, tmp_path, count=LONG, seed=2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_samples_are_equal(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    """Every series with every sample, as the engine reads it for a range selector."""

    async def story(both: TwoEngines) -> None:
        given = {"query": '{__name__=~".+"}[2h]', "time": str(END_MS // 1000)}
        own, remote = await both.both("query", **given)
        one, other = own["data"]["result"], remote["data"]["result"]
        assert len(one) == len(written)
        assert sorted(one, key=str) == sorted(other, key=str)
        async with both.session.get(f"{both.remote}/metrics") as response:
            counted = await response.text()
        assert ('response_type="chunked"' in counted) == (name == "current")

    talk_to_engines(name, place, written, tmp_path, story)


@pytest.mark.parametrize("name", PROGRAMS)
def test_promtool_has_the_same_answers_of_sluice_and_of_a_prometheus(
    name: str, place: Deployment, written: Series, tmp_path: Path
) -> None:
    """Series, values of a label and an instant selector, which sluice answers itself."""
    span = (f"--start={START_MS // 1000}", f"--end={END_MS // 1000}")
    questions = [
        ("instant", f"--time={END_MS // 1000 - 1200}", "URL", 'up{job=~"a.*"}'),
        ("instant", f"--time={END_MS // 1000 - 1200}", "URL", 'odd{kind!="bits"}'),
        ("series", "--match=up", '--match={code="500"}', *span, "URL"),
        ("labels", *span, "URL", "instance"),
        ("labels", *span, "URL", "__name__"),
    ]

    async def story(both: TwoEngines) -> None:
        for question in questions:
            found = []
            for url in (both.own, both.sluice.url):
                words = [url if one == "URL" else one for one in question]
                done = await asyncio.to_thread(promtool, "query", *words)
                found.append(sorted(done.splitlines()))
            assert found[0] == found[1]
            assert found[0]
        wrong = ("query", "instant", both.sluice.url, "rate(up[5m])")
        with pytest.raises(subprocess.CalledProcessError) as raised:
            await asyncio.to_thread(promtool, *wrong)
        assert "word=`rate`: send it to a Prometheus with remote_read" in raised.value.stderr

    talk_to_engines(name, place, written, tmp_path, story)


def promtool(*words: str) -> str:
    command = [str(PROMTOOL), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout
