"""rsyslog and syslog-ng of Debian send syslog to an agent, as docs/send describes."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from support.client_programs import DEBIAN, debian_environment, program
from support.store_versitygw import free_port

from sluice_agent.app import run_agent
from sluice_agent.disk import RealDisk
from sluice_agent.settings import AgentSettings, SpoolSettings
from sluice_agent.spool import Spool
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import decode_frame
from sluice_protocol.ndjson import attribute_rows

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

LINES = 5_000
RSYSLOG = """
global(workDirectory="{folder}")
module(load="imfile" mode="polling" pollingInterval="1")
input(type="imfile" File="{log}" Tag="shop:" Severity="error" Facility="local3")
action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" {form}
       queue.type="linkedList" queue.filename="sluice" queue.maxDiskSpace="1g"
       queue.saveOnShutdown="on" action.resumeRetryCount="-1" action.resumeInterval="1")
"""
SYSLOG_NG = """@version: 3.38
source s_src {{ file("{log}" follow-freq(1) flags(no-parse) program-override("shop")
  default-facility(local3) default-priority(err)); }};
destination d_sluice {{ {form} }};
log {{ source(s_src); destination(d_sluice); flags(flow-control); }};
"""
COUNTED = 'template="RSYSLOG_SyslogProtocol23Format" TCP_Framing="octet-counted"'
FORMS = {
    "rsyslog-5424": (RSYSLOG, COUNTED),
    "rsyslog-default": (RSYSLOG, ""),
    "rsyslog-3164": (RSYSLOG, 'template="RSYSLOG_TraditionalForwardFormat"'),
    "syslog-ng-5424": (SYSLOG_NG, 'syslog("127.0.0.1" port({port}) transport("tcp"));'),
    "syslog-ng-3164": (SYSLOG_NG, 'network("127.0.0.1" port({port}) transport("tcp"));'),
}


def command(name: str, config: Path, folder: Path) -> list[str | Path]:
    if name.startswith("rsyslog"):
        modules = DEBIAN / "usr/lib/x86_64-linux-gnu/rsyslog"
        return [DEBIAN / "usr/sbin/rsyslogd", "-n", "-iNONE", "-M", modules, "-f", config]
    return [
        *(DEBIAN / "usr/sbin/syslog-ng", "--foreground", "--stderr", "--no-caps", "-f", config),
        *("--module-path", DEBIAN / "usr/lib/syslog-ng/3.38"),
        *("-R", folder / "persist", "-p", folder / "pid", "-c", folder / "control"),
    ]


def received(spool: Path) -> list[tuple[str, dict[str, str], int]]:
    """Return body, attributes and severity of every record in the spool."""
    opened = Spool(SpoolSettings(directory=spool, agent_id="a"), RealDisk(), boot_id="read")
    found: list[tuple[str, dict[str, str], int]] = []
    for batch in opened.ready():
        columns = decode_frame(opened.read(batch)).columns
        assert isinstance(columns, LogColumns)
        assert columns.severity is not None
        pairs = map(dict, attribute_rows(columns.attributes, len(columns)))
        bodies = [body.decode() for body in columns.body.slices()]
        found += zip(bodies, pairs, columns.severity.tolist(), strict=True)
    opened.close()
    return found


@pytest.mark.parametrize("name", FORMS)
def test_every_line_arrives_once_after_the_spool_was_full(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender waits while the agent does not read, and keeps what it could not send."""
    log, port, config = tmp_path / "shop.log", free_port(), tmp_path / "client.conf"
    template, form = FORMS[name]
    log.touch()
    config.write_text(
        template.format(folder=tmp_path, log=log, port=port, form=form.format(port=port))
    )
    has_room: list[bool] = []
    monkeypatch.setattr(Spool, "fits", lambda *_: any(has_room))
    wanted = [f"order {n} was accepted: ü" for n in range(LINES)]

    async def main() -> None:
        stop = asyncio.Event()
        settings = AgentSettings(
            gateway="http://127.0.0.1:9", spool=tmp_path / "s", agent_id="a", host_metrics_s=0,
            syslog=(f"tcp://127.0.0.1:{port}",), batch_records=1_000,
        )  # fmt: skip
        agent = asyncio.create_task(run_agent(settings, stop=stop))
        with program(
            command(name, config, tmp_path), tmp_path / "client.log", debian_environment(),
            faults=r"message lost|[Mm]essages? dropped",
        ) as client:  # fmt: skip
            log.write_text("".join(f"{line}\n" for line in wanted))
            await asyncio.sleep(5.0)
            has_room.append(True)
            await asyncio.sleep(10.0)
            assert client.errors() == []
        stop.set()
        result = await agent
        assert result.sealed_records >= LINES

    asyncio.run(main())
    records = [one for one in received(tmp_path / "s") if one[1].get("service.name") == "shop"]
    assert Counter(body for body, _, _ in records) == Counter(wanted)
    for _, pairs, severity in records:
        assert (pairs["syslog.facility"], severity) == ("19", 17)
        assert "sluice.error" not in pairs
