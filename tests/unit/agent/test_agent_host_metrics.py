"""Host metrics: names, types and attributes, and sources that are unavailable."""

from collections.abc import Iterator

import psutil
import pytest
from structlog.testing import capture_logs

from sluice_agent.inputs.host_metrics import (
    CUMULATIVE,
    SOURCES,
    HostMetric,
    HostMetricsInput,
    columns_from_metrics,
    cpu_times,
    disks,
    file_systems,
    load_averages,
    memory,
)
from sluice_protocol.columns import MetricColumns
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import UnixNs

NOW = UnixNs(1_700_000_000_000_000_000)


def failing() -> Iterator[HostMetric]:
    raise FileNotFoundError("no procfs")


def test_a_sample_of_this_host_is_a_valid_frame() -> None:
    """Load, CPU and memory of this machine pass the frame's decoder."""
    block = HostMetricsInput().sample(now_ns=NOW)
    assert isinstance(block.columns, MetricColumns)
    who = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=len(block.columns) - 1)
    decoded = decode_frame(encode_frame(identity=who, columns=block.columns)).columns
    assert isinstance(decoded, MetricColumns)
    assert {"system.cpu.load_average.1m", "system.cpu.time", "system.memory.limit"} <= set(
        decoded.name.names
    )


def test_only_the_first_sample_of_a_run_does_not_wait() -> None:
    host = HostMetricsInput([load_averages], wait_s=60)
    samples = [host.sample(now_ns=NOW) for _ in range(3)]
    assert [sample.wait_s for sample in samples if sample is not None] == [0, 60, 60]


def test_names_and_attributes() -> None:
    """The names and attributes are those of OpenTelemetry's conventions."""
    assert [m.name[-3:] for m in load_averages()] == [".1m", ".5m", "15m"]
    cpu = {dict(m.attributes)["cpu.mode"]: m for m in cpu_times()}
    assert {"user", "system", "idle"} <= set(cpu)
    assert {(m.name, m.type) for m in cpu.values()} == {("system.cpu.time", CUMULATIVE)}
    limit, *used = memory()
    assert limit.name == "system.memory.limit"
    states = {dict(m.attributes)["system.memory.state"]: m.value for m in used}
    assert set(states) <= {"free", "available", "buffers", "cached"}
    assert all(0 <= value <= limit.value for value in states.values())


def test_disks_and_file_systems() -> None:
    """Disk counters are cumulative; loop devices and RAM disks are left out."""
    for metric in disks():
        assert (metric.name, metric.type) == ("system.disk.io", CUMULATIVE)
        assert not dict(metric.attributes)["system.device"].startswith(("loop", "ram"))
    found = [dict(m.attributes) for m in file_systems()]
    mounts = {each["system.filesystem.mountpoint"] for each in found}
    assert len(found) == 2 * len(mounts)
    assert {each["system.filesystem.state"] for each in found} <= {"free", "used"}


def test_a_mount_point_that_is_not_utf8_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    mount = psutil.disk_partitions(all=True)[0]
    found = mount._replace(mountpoint="/media/\udcfc", fstype="ext4")
    usage = psutil.disk_usage("/")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [found])
    monkeypatch.setattr(psutil, "disk_usage", lambda _: usage)
    block = HostMetricsInput([file_systems]).sample(now_ns=NOW)
    points = attribute_rows(block.columns.attributes, len(block.columns))
    assert {one["system.filesystem.mountpoint"] for one in points} == {"/media/\\xfc"}


def test_an_unavailable_source_is_left_out_and_logged_once() -> None:
    """The other sources are sampled all the same."""
    host = HostMetricsInput([failing, load_averages])
    with capture_logs() as logs:
        blocks = [host.sample(now_ns=NOW) for _ in range(2)]
    assert [len(block.columns) for block in blocks if block is not None] == [3, 3]
    assert all(block is not None and block.may_wait for block in blocks)
    assert [entry["event"] for entry in logs] == ["host_metrics_unavailable"]
    assert logs[0]["source"] == "failing"


def test_no_available_source_means_no_records() -> None:
    """An empty batch is never cut."""
    assert HostMetricsInput([failing]).sample(now_ns=NOW) is None


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_yields_finite_values(source: object) -> None:
    metrics = list(source())
    assert len(columns_from_metrics(metrics, now_ns=NOW)) == len(metrics)
