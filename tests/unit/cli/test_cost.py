"""`sluice cost`: options, prices, and the bars that the settings are made for."""

import json
from pathlib import Path

import pytest

from sluice_agent.settings import BATCH_BYTES_MAX
from sluice_agent.settings import FRESHNESS_S_MAX as AGENT_FRESHNESS_S_MAX
from sluice_cli import cost as model
from sluice_cli.cost import CostPlan, CostReport, Load, compute_cost, files_puts, hit_lanes
from sluice_cli.main import run as run_command
from sluice_gateway.doors.combined_frames import DOOR_LANES
from sluice_gateway.doors.combiner import FRAME_INTERVAL_S
from sluice_gateway.journal import EARLY_ENTRIES
from sluice_gateway.settings import FLUSH_BYTES_MAX, FLUSH_MS_MAX
from sluice_lake.delta import CONFIGURATION
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.prices import S3_US_EAST_1
from sluice_reconciler.settings import FRESHNESS_S_MAX as RECONCILER_FRESHNESS_S_MAX
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.ingest.write_tasks import TASK_BYTES_MAX
from sluice_spark.settings import IngestSettings

MIB = 1024 * 1024
FLEET = ["--rate", "30MiB/s", "--agents", "1000", "--freshness-s", "60"]
BEHIND_DOORS = [
    *("--rate", "30MiB/s", "--agents", "1", "--doors", "--freshness-s", "2"),
    *("--lanes", "1", "--reconciler-freshness-s", "2", "--journal-interval-s", "2"),
    *("--trigger-s", "60"),
]


def run(capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    assert run_command(["cost", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fleet(rate: str = "30MiB/s", **settings: object) -> CostPlan:
    return CostPlan(rate=rate, **settings)


def cost_of(rate: str = "30MiB/s", **settings: object) -> CostReport:
    return compute_cost(fleet(rate, **settings), S3_US_EAST_1)


def dollars_of(report: CostReport) -> dict[str, float]:
    return {one.activity: one.dollars_per_month for one in report.requests}


def test_a_thousand_agents_with_a_minute_cost_less_than_600_dollars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = run(capsys, *FLEET, "--pack-references")
    assert found["batches_per_s"] == pytest.approx(1000 / 60)
    assert found["batch_bytes"] == pytest.approx(1.8 * MIB)
    assert found["total"]["dollars_per_month"] < 600


def test_combined_doors_with_two_seconds_cost_less_than_250_dollars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = run(capsys, *BEHIND_DOORS, "--pack-references")
    assert found["batches_per_s"] == pytest.approx(4)
    assert found["total"]["dollars_per_month"] < 250


def test_rates_of_a_day_and_of_a_second_are_the_same_load(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_day = run(capsys, "--rate", "86.4GB/d")
    assert a_day["bytes_per_s"] == pytest.approx(1e6)
    same = run(capsys, "--rate", "1MB/s")
    assert (a_day["requests"], a_day["storage"]) == (same["requests"], same["storage"])


def test_doors_have_a_freshness_that_they_accept(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--rate", "1MiB/s", "--agents", "1", "--doors")
    assert found["settings"]["freshness_s"] == 2.0


def test_settings_follow_from_the_freshness(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--rate", "1MiB/s", "--freshness-s", "24")["settings"]
    assert (found["journal_interval_s"], found["reconciler_freshness_s"]) == (2.0, 6.0)
    assert found["trigger_s"] == 24.0
    assert run(capsys, "--rate", "1MiB/s", "--freshness-s", "3600")["settings"]["trigger_s"] == 300


def test_the_settings_of_before_cost_several_times_as_much() -> None:
    """Batches once a second, flushes several times a second, references alone."""
    before = cost_of(
        freshness_s=1.0, journal_interval_s=1.0, reconciler_freshness_s=0.0, trigger_s=10.0
    )
    assert before.total.dollars_per_month > 10 * 600


def test_requests_do_not_depend_on_bytes_and_storage_does() -> None:
    small, large = cost_of(), cost_of("60MiB/s")
    name = "accept: blobs and manifests"
    assert dollars_of(small)[name] == dollars_of(large)[name]
    assert large.storage[0].stored_bytes == pytest.approx(2 * small.storage[0].stored_bytes)


def test_packed_references_are_not_written() -> None:
    name = "indexes: reverse references"
    assert dollars_of(cost_of())[name] > 200
    assert dollars_of(cost_of(pack_references=True))[name] == 0


def test_retention_bounds_the_tables_and_not_the_blobs() -> None:
    blobs, _, tables = cost_of(history_days=300, retention_days=30).storage
    assert blobs.stored_bytes == pytest.approx(10 * tables.stored_bytes)


def test_history_raises_the_price_of_listings_only() -> None:
    young = {one.activity: one for one in cost_of(history_days=1).requests}
    old = {one.activity: one for one in cost_of(history_days=365).requests}
    grown = {name for name in young if old[name].per_s != young[name].per_s}
    assert grown == {"audits: listing", "reconciler: full passes (estimate)"}


def test_prices_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        'name = "ours"\nput_dollars_per_1000 = 0\nlist_dollars_per_1000 = 0\n'
        "get_dollars_per_1000 = 0\nstorage = [{ gib_month_dollars = 0.01 }]\n"
    )
    found = run(capsys, *FLEET, "--prices", str(file))
    assert found["prices"]["name"] == "ours"
    assert found["total"]["dollars_per_month"] == 0
    stored_gib = sum(one["stored_bytes"] for one in found["storage"]) / 2**30
    assert found["storage_dollars_per_month"] == pytest.approx(0.01 * stored_gib)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "30MiB"), "rate must be bytes per s, m, h or d"),
        (("--rate", "1GiB/week"), "rate must be bytes per s, m, h or d"),
        (("--rate", "1PiB/d"), "units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, rate=`1PiB/d`"),
        (
            ("--rate", "1MiB/s", "--freshness-s", "7200"),
            "--freshness-s must be at least 0.05 and at most 3600, freshness-s=`7200`",
        ),
        (("--rate", "1MiB/s", "--doors", "--freshness-s", "6"), "and at most 5, freshness-s=`6`"),
        (("--rate", "1MiB/s", "--lanes", "0"), "--lanes must be at least 1"),
        (("--rate", "1MiB/s", "--agents", "0"), "--agents must be at least 1, agents=`0`"),
        (("--rate", "1MiB/s", "--reconciler-freshness-s", "60"), "--reconciler-freshness-s must"),
        (("--rate", "1MiB/s", "--compression", "0"), "--compression must be at least 0.1"),
        (("--rate", "1MiB/s", "--prices", "/none"), "cannot read the prices"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["cost", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_text_names_every_activity_and_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["cost", *FLEET]) == 0
    text = capsys.readouterr().out
    report = cost_of()
    assert "agents: 1000, 30.7 KiB/s each" in text.splitlines()
    for one in report.requests:
        assert one.activity in text
    assert f"{report.total.dollars_per_month:.2f}" in text
    assert f"{report.storage_dollars_per_month:.2f}" in text


def test_the_model_repeats_the_constants_of_the_components() -> None:
    """The command imports no component, so that it needs no extra and starts quickly."""
    reconciler, ingest = ReconcilerSettings(), IngestSettings()
    assert {model.BATCH_BYTES_MAX} == {BATCH_BYTES_MAX, FLUSH_BYTES_MAX}
    assert model.FRESHNESS_S_MAX == AGENT_FRESHNESS_S_MAX
    assert (model.DOOR_FLUSH_S_MAX, model.DOOR_FRAME_S) == (FLUSH_MS_MAX / 1000, FRAME_INTERVAL_S)
    assert model.DOOR_LANES == DOOR_LANES
    assert model.RECONCILER_S_MAX == RECONCILER_FRESHNESS_S_MAX
    assert reconciler.list_batches_max == model.LISTED_BATCHES
    assert model.EARLY_ENTRIES == EARLY_ENTRIES
    assert ingest.max_bytes_per_trigger == model.TRIGGER_BYTES
    assert ingest.max_batches_per_trigger == model.TRIGGER_BATCHES
    assert {**CONFIGURATION}["delta.checkpointInterval"] == str(model.TABLE_CHECKPOINT_COMMITS)
    assert len(RECORD_TABLES) + 1 == model.TABLES
    assert model.TASK_BYTES == TASK_BYTES_MAX


def test_limits_of_a_micro_batch_shorten_the_trigger() -> None:
    load = Load(fleet("1000MiB/s", trigger_s=60.0))
    assert load.micro_batch_s == pytest.approx(1024 / 200)


def test_combined_frames_have_a_least_interval() -> None:
    quick = fleet("1B/s", doors=True, agents=1, freshness_s=0.05)
    assert Load(quick).batches == pytest.approx(8 / 0.25)


def test_large_files_are_written_in_parts() -> None:
    assert files_puts(4, 4 * MIB) == 4
    assert files_puts(1, 35 * MIB) == 6  # begin, four parts, end


def test_lanes_that_batches_are_in() -> None:
    assert hit_lanes(4, 1) == pytest.approx(1)
    assert hit_lanes(4, 1000) == pytest.approx(4)
    assert hit_lanes(1, 7) == 1
    assert hit_lanes(2, 2) == pytest.approx(1.5)


def test_the_page_shows_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`docs/cost.md`: each line after a command is one of its output."""
    page = (Path(__file__).parents[3] / "docs" / "cost.md").read_text()
    examples = [part for part in page.split("```") if part.startswith("\n$ sluice cost ")]
    assert len(examples) == 2
    for example in examples:
        command, *shown = example.strip().splitlines()
        assert run_command(command.removeprefix("$ sluice ").split()) == 0
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in shown if line not in printed and line != "…"] == []
