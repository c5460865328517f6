"""`sluice cost`: options, prices, the bars that the settings are made for, and the advice."""

import json
from pathlib import Path

import pytest

from sluice_agent.batch_limits import BATCH_BYTES_MAX
from sluice_agent.settings import FRESHNESS_S_MAX as AGENT_FRESHNESS_S_MAX
from sluice_agent.settings import AgentSettings
from sluice_cli.costs import lake_requests, plan, service_requests
from sluice_cli.costs.lake_requests import files_puts
from sluice_cli.costs.plan import CostPlan
from sluice_cli.costs.report import CostReport, compute_cost
from sluice_cli.costs.service_requests import hit_lanes
from sluice_cli.dispatch import run_command
from sluice_gateway.background import DECISIONS_INTERVAL_S, DOCTOR_INTERVAL_S, MODE_INTERVAL_S
from sluice_gateway.doors.combined_frames import DOOR_LANES
from sluice_gateway.doors.combiner import FRAME_INTERVAL_S
from sluice_gateway.journal_writer import EARLY_ENTRIES
from sluice_gateway.readiness import AUTHORITY_INTERVAL_S
from sluice_gateway.settings import FLUSH_BYTES_MAX, FLUSH_MS_MAX
from sluice_lake.delta import CONFIGURATION
from sluice_lake.tables import RECORD_TABLES
from sluice_protocol.errors import BadUsage
from sluice_protocol.prices import S3_US_EAST_1, PriceTable, RequestCounts
from sluice_reconciler.journals.removal import REMOVAL_INTERVAL_S
from sluice_reconciler.lanes.membership import HEARTBEAT_S as MEMBER_HEARTBEAT_S
from sluice_reconciler.passes.progress import safety_interval_s
from sluice_reconciler.settings import FRESHNESS_S_MAX as RECONCILER_FRESHNESS_S_MAX
from sluice_reconciler.settings import ReconcilerSettings
from sluice_spark.settings import IngestSettings
from sluice_spark.write_tasks import TASK_BYTES_MAX

MIB = 1024 * 1024
FLEET = ["--rate", "30MiB/s", "--agents", "1000", "--freshness", "60s"]
BEHIND_DOORS = [
    *("--rate", "30MiB/s", "--agents", "1", "--doors", "--freshness", "2s"),
    *("--lanes", "1", "--reconciler-freshness", "2s", "--journal-interval", "2s"),
    *("--trigger", "60s"),
]


def run(capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    assert run_command(["cost", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fleet(**settings: object) -> CostPlan:
    return CostPlan(rate_bytes_per_s=30 * MIB).with_changes(**settings)


def cost_of(**settings: object) -> CostReport:
    return compute_cost(fleet(**settings), S3_US_EAST_1)


def test_a_thousand_agents_with_a_minute_cost_less_than_600_dollars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = run(capsys, *FLEET, "--pack-references")
    assert found["batches_per_s"] == pytest.approx(1000 / 60)
    assert found["batch_bytes"] == pytest.approx(1.8 * MIB)
    assert found["request_dollars_per_month"] < 600


def test_combined_doors_with_two_seconds_cost_less_than_250_dollars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = run(capsys, *BEHIND_DOORS, "--pack-references")
    assert found["batches_per_s"] == pytest.approx(4)
    assert found["request_dollars_per_month"] < 250


def test_rates_of_a_day_and_of_a_second_are_the_same_load(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_day = run(capsys, "--rate", "86.4GB/d")
    assert a_day["settings"]["rate_bytes_per_s"] == pytest.approx(1e6)
    assert a_day == run(capsys, "--rate", "1MB/s")


def test_doors_have_a_freshness_that_they_accept(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--rate", "1MiB/s", "--agents", "1", "--doors")
    assert found["settings"]["freshness_s"] == 2.0


def test_the_text_has_the_rate_of_each_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["cost", *FLEET]) == 0
    assert "agents: 1000, 30.7 KiB/s each" in capsys.readouterr().out.splitlines()


def test_samples_of_hosts_are_cut_once_a_minute() -> None:
    lines = fleet(freshness_s=1.0).filled().batches_per_s
    both = fleet(freshness_s=1.0, kinds=2).filled().batches_per_s
    assert both - lines == pytest.approx(1000 / 60)
    slow = fleet(freshness_s=120.0, kinds=2).filled().batches_per_s
    assert slow == pytest.approx(2 * 1000 / 120)


def test_the_settings_of_before_cost_several_times_as_much() -> None:
    """Batches once a second, flushes several times a second, references alone."""
    before = cost_of(
        freshness_s=1.0, journal_interval_s=1.0, reconciler_freshness_s=0.0, trigger_s=10.0
    )
    assert before.request_dollars_per_month > 10 * 600


def test_the_advice_names_the_changes_that_save_most() -> None:
    report = cost_of()
    saved = [one.saved_dollars_per_month for one in report.changes]
    assert len(saved) == 3
    assert saved == sorted(saved, reverse=True)
    assert {"pack_references": True} in [one.settings for one in report.changes]
    for one in report.changes:
        after = cost_of(**one.settings).request_dollars_per_month
        difference = report.request_dollars_per_month - after
        assert difference == pytest.approx(one.saved_dollars_per_month)


def test_the_dominant_setting_is_that_of_the_largest_share() -> None:
    assert cost_of(pack_references=True).dominant[0] == "agent freshness_s"
    slow = {"freshness_s": 3600.0, "reconciler_freshness_s": 0.0, "batch_bytes": 8 * MIB}
    assert "reconciler freshness_s" in cost_of(**slow, gateway_workers=8).dominant[0]


def test_requests_do_not_depend_on_bytes_and_storage_does() -> None:
    small, large = cost_of(), cost_of(rate_bytes_per_s=60 * MIB)
    of_small = {one.line.activity: one.dollars_per_month for one in small.lines}
    of_large = {one.line.activity: one.dollars_per_month for one in large.lines}
    assert of_small["blobs and manifests"] == of_large["blobs and manifests"]
    assert large.stored[0].stored_bytes == pytest.approx(2 * small.stored[0].stored_bytes)


def test_retention_bounds_the_tables_and_not_the_blobs() -> None:
    blobs, _, tables = cost_of(history_days=300, lake_days=30).stored
    assert blobs.stored_bytes == pytest.approx(10 * tables.stored_bytes)


def test_history_raises_the_price_of_listings_only() -> None:
    young = {one.line.activity: one for one in cost_of(history_days=1).lines}
    old = {one.line.activity: one for one in cost_of(history_days=365).lines}
    grown = {name for name in young if old[name].line.per_s != young[name].line.per_s}
    assert grown == {"audits: listing", "full passes"}


def test_prices_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        'name = "ours"\nput_dollars_per_1000 = 0\nlist_dollars_per_1000 = 0\n'
        "get_dollars_per_1000 = 0\nstorage = [{ gib_month_dollars = 0.01 }]\n"
    )
    found = run(capsys, *FLEET, "--prices", str(file))
    assert found["prices"]["name"] == "ours"
    assert found["request_dollars_per_month"] == 0
    assert found["changes"] == []
    stored_gib = sum(one["stored_bytes"] for one in found["storage"]) / 2**30
    assert found["storage_dollars_per_month"] == pytest.approx(0.01 * stored_gib)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "30MiB"), "rate must be bytes per s, m, h or d"),
        (("--rate", "1GiB/week"), "rate must be bytes per s, m, h or d"),
        (("--rate", "fast/s"), "rate must be a size"),
        (("--rate", "1MiB/s", "--freshness", "60"), "freshness must be a duration"),
        (
            ("--rate", "1MiB/s", "--freshness", "2h"),
            "--freshness must be at least 0.05 s and at most 3600 s",
        ),
        (
            ("--rate", "1MiB/s", "--doors", "--freshness", "6s"),
            "and at most 5 s with --doors, freshness=`6 s`",
        ),
        (("--rate", "1MiB/s", "--lanes", "0"), "--lanes must be at least 1"),
        (("--rate", "1MiB/s", "--agents", "0"), "--agents must be at least 1, agents=`0`"),
        (("--rate", "1MiB/s", "--batch", "16MiB"), "at most 8388608 B, batch=`16777216 B`"),
        (("--rate", "1MiB/s", "--reconciler-freshness", "1m"), "--reconciler-freshness must be"),
        (("--rate", "1MiB/s", "--prices", "/none"), "cannot read the prices"),
    ],
)
def test_wrong_options_are_refused(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["cost", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_text_names_every_activity_and_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["cost", *FLEET, "--queries-per-day", "100"]) == 0
    text = capsys.readouterr().out
    report = cost_of(queries_per_day=100.0)
    for one in report.lines:
        assert f"{one.line.component}: {one.line.activity}" in text
    assert f"{report.request_dollars_per_month:.2f}" in text
    assert f"{report.storage_dollars_per_month:.2f}" in text


def test_a_plan_out_of_range_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(BadUsage, match="compression"):
        fleet(compression=0.0)


def test_the_model_repeats_the_constants_of_the_components() -> None:
    """The command imports no component, so that it needs no extra and starts quickly."""
    settings, ingest = ReconcilerSettings(), IngestSettings()
    assert {plan.BATCH_BYTES} == {BATCH_BYTES_MAX, FLUSH_BYTES_MAX}
    assert plan.FRESHNESS_S_MAX == AGENT_FRESHNESS_S_MAX
    assert (plan.DOOR_FLUSH_S_MAX, plan.DOOR_FRAME_S) == (FLUSH_MS_MAX / 1000, FRAME_INTERVAL_S)
    assert plan.DOOR_LANES == DOOR_LANES
    assert AgentSettings(gateway="http://gateway").host_metrics_batch_s == plan.SAMPLES_S
    assert plan.RECONCILER_S_MAX == RECONCILER_FRESHNESS_S_MAX
    assert (settings.journal_poll_s, settings.journal_interval_s) == (plan.ROUND_S, plan.LISTING_S)
    assert safety_interval_s(0, 86_400) == plan.PASS_S
    assert safety_interval_s(100_000, 86_400) == plan.PASS_S_PER_BATCH * 100_000
    assert ingest.trigger_s == plan.TRIGGER_S
    assert ingest.max_bytes_per_trigger == plan.TRIGGER_BYTES
    assert ingest.max_batches_per_trigger == plan.TRIGGER_BATCHES
    assert settings.list_batches_max == service_requests.LISTED_BATCHES
    assert service_requests.EARLY_ENTRIES == EARLY_ENTRIES
    assert {service_requests.GATEWAY_CHECK_S} == {
        DECISIONS_INTERVAL_S,
        MODE_INTERVAL_S,
        AUTHORITY_INTERVAL_S,
    }
    assert service_requests.DOCTOR_CHECK_S == DOCTOR_INTERVAL_S
    assert service_requests.MEMBER_S == MEMBER_HEARTBEAT_S
    assert settings.collect_interval_s == service_requests.UPKEEP_S
    assert settings.hold_interval_s == service_requests.HOLDS_S
    assert service_requests.REMOVAL_S == REMOVAL_INTERVAL_S
    assert {**CONFIGURATION}["delta.checkpointInterval"] == str(
        lake_requests.TABLE_CHECKPOINT_COMMITS
    )
    assert len(RECORD_TABLES) + 1 == lake_requests.TABLES
    assert lake_requests.TASK_BYTES == TASK_BYTES_MAX


def test_limits_of_a_micro_batch_shorten_the_trigger() -> None:
    full = fleet(rate_bytes_per_s=1000 * MIB, trigger_s=60.0).filled()
    assert full.micro_batch_s == pytest.approx(1024 / 200)
    assert fleet(freshness_s=3600.0).filled().trigger_s == plan.TRIGGER_S_MAX


def test_combined_frames_have_a_least_interval() -> None:
    quick = fleet(doors=True, senders=1, freshness_s=0.05, rate_bytes_per_s=1.0)
    assert quick.filled().batches_per_s == pytest.approx(8 / 0.25)


def test_large_files_are_written_in_parts() -> None:
    assert files_puts(4, 4 * MIB) == 4
    assert files_puts(1, 35 * MIB) == 6  # begin, four parts, end


def test_lanes_that_batches_are_in() -> None:
    assert hit_lanes(4, 1) == pytest.approx(1)
    assert hit_lanes(4, 1000) == pytest.approx(4)
    assert hit_lanes(1, 7) == 1
    assert hit_lanes(2, 2) == pytest.approx(1.5)


def test_free_requests_cost_nothing() -> None:
    free = PriceTable(put_dollars_per_1000=0, list_dollars_per_1000=0, get_dollars_per_1000=0)
    report = compute_cost(fleet(), free)
    assert report.request_dollars_per_month == 0
    assert all(isinstance(one.line.per_s, RequestCounts) for one in report.lines)


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
