"""Settings of an agent that would have no effect are refused at the start."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.constants import settings_with

from sluice_agent.app import run_agent, run_forward
from sluice_agent.settings import AgentSettings, Durability, check_agent_settings
from sluice_cli.agent import init
from sluice_protocol.errors import BadUsage

PEM = Path("a.pem")
LOCAL = "127.0.0.1:4318"
UDP, TLS = "udp://127.0.0.1:514", "tls://127.0.0.1:6514"
KEY = "shop=" + "0" * 64


def settings(**how: Any) -> AgentSettings:
    return settings_with(AgentSettings, **{"gateway": "http://a:1", **how})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"gateway": "https://a", "tls_key": PEM}, "tls_key has no effect without tls_cert"),
        ({"tls_cert": PEM}, "tls_cert has no effect without a gateway with https://"),
        ({"tls_ca": PEM}, "tls_ca has no effect without a gateway with https://"),
        ({"doors_listen": LOCAL}, "doors_listen has no effect without a door over HTTP"),
        ({"door_tokens": KEY}, "door_tokens has no effect without a door over HTTP"),
        (
            {"doors": ("forward",), "forward_listen": "127.0.0.1:24224", "door_tokens": KEY},
            "door_tokens has no effect without a door over HTTP or gRPC",
        ),
        ({"door_tls_cert": PEM}, "door_tls_cert has no effect without doors"),
        ({"syslog": (UDP,), "syslog_tls_cert": PEM}, "syslog_tls_cert has no effect without"),
        ({"syslog": (UDP,), "syslog_tls_key": PEM}, "syslog_tls_key has no effect without"),
        ({"syslog": (UDP,), "syslog_client_ca": PEM}, "syslog_client_ca has no effect without"),
        ({"from_end": True}, "from_end has no effect without paths or journal"),
        ({"format": "json"}, "format has no effect without paths"),
        ({"multiline_start": "^#"}, "multiline_start has no effect without paths"),
        ({"host_metrics_s": float("nan")}, "host_metrics_s must be at least 0"),
        (
            {"doors": ("json",), "door_body_bytes": 64 << 20, "spool_bytes": 32 << 20},
            "never fits into the spool",
        ),
        (
            {"doors": ("otlp",), "doors_listen": LOCAL, "otlp_grpc_listen": LOCAL},
            "doors_listen and otlp_grpc_listen are one address",
        ),
        (
            {"doors": ("json",), "doors_listen": LOCAL, "health": "0.0.0.0:4318"},
            "doors_listen and health are one address",
        ),
    ],
)
def test_a_setting_without_effect_is_refused_before_anything_is_opened(
    tmp_path: Path, how: dict[str, Any], message: str
) -> None:
    given = settings(spool=tmp_path / "s", **how)
    with pytest.raises(BadUsage, match=message):
        asyncio.run(run_agent(given, stop=asyncio.Event()))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("how", "give_up_s", "message"),
    [({"tls_key": PEM}, 0.0, "tls_key"), ({}, -1.0, "give_up_s")],
)
def test_the_settings_of_a_pipe_are_checked_too(
    tmp_path: Path, how: dict[str, Any], give_up_s: float, message: str
) -> None:
    given = settings(spool=tmp_path / "s", **how)
    with pytest.raises(BadUsage, match=message), Path(os.devnull).open("rb") as pipe:
        asyncio.run(
            run_forward(
                given,
                durability=Durability.FAST,
                descriptor=pipe.fileno(),
                stop=asyncio.Event(),
                give_up_s=give_up_s,
            )
        )
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"gateway": "http://a,https://b", "tls_ca": PEM, "tls_cert": PEM, "tls_key": PEM},
        {"otlp": LOCAL, "door_tokens": KEY},
        {"syslog": (UDP, TLS), "syslog_tls_cert": PEM, "syslog_client_ca": PEM},
        {"doors": ("otlp",), "health": "127.0.0.2:4318", "otlp_grpc_listen": "127.0.0.1:4317"},
        {"doors": ("json",), "spool_bytes": 20 << 20},
        {"paths": ("/var/log/*",), "from_end": True},
    ],
)
def test_settings_that_belong_together_are_accepted(how: dict[str, Any]) -> None:
    check_agent_settings(settings(**how))


@pytest.mark.parametrize(
    ("agent_id", "message"),
    [
        ("door:shop:c1", "ids that begin with `door:` are reserved for gateways"),
        ("a\tb", "id contains a control character: set another --agent-id, agent_id=`a\\\\tb`"),
        ("a" * 121, "id must be 1 to 120 bytes"),
        ("", "id must be 1 to 120 bytes"),
        ("\udc80", "id is not valid UTF-8"),
    ],
)
def test_an_id_that_no_gateway_accepts_is_refused_before_anything_is_read(
    agent_id: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadUsage, match=message):
        settings(agent_id=agent_id)
    with pytest.raises(BadUsage, match=message):
        init(agent_id=agent_id or "x" * 121, key=tmp_path / "key.pem")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", ["paths", "exclude"])
@pytest.mark.parametrize(
    "pattern", ["/l/{a,b}.log", "/l/*.{log,txt}", "/l/app{1..3}.log", "/l/{a,}", "/l/{a,{b,c}}"]
)
def test_alternatives_in_braces_are_refused(setting: str, pattern: str) -> None:
    with pytest.raises(BadUsage, match="write one pattern for each alternative") as refused:
        settings(**{setting: (pattern,)})
    assert f"{setting}=`{pattern}`" in str(refused.value)


@pytest.mark.parametrize("pattern", ["/l/*.log", "/l/{id}.log", "/l/[{]a,b}.log", "/l/a,b.log"])
def test_a_brace_without_alternatives_is_part_of_a_name(pattern: str) -> None:
    assert settings(paths=(pattern,)).paths == (pattern,)
