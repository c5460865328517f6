"""The agent's settings and key file; settings that would have no effect are refused."""

import asyncio
import errno
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from support.constants import settings_with

from sluice_agent.app import run_agent, run_forward
from sluice_agent.sending.signing_key import make_key, principal_entry, read_key
from sluice_agent.settings import (
    BATCH_BYTES_MAX,
    BLOCK_COST_BYTES_MAX,
    AgentSettings,
    BatchLimits,
    BlockLimits,
    Durability,
    check_agent_settings,
)
from sluice_cli.agent import init
from sluice_protocol.errors import BadUsage


def test_keys_are_exchanged_with_the_library(tmp_path: Path) -> None:
    """The library reads what the agent writes, and the agent reads every form of the library."""
    made = make_key(tmp_path / "made.pem")
    pem = (tmp_path / "made.pem").read_bytes()
    private = Ed25519PrivateKey.from_private_bytes(bytes(made.key))
    assert pem == private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for number, text in enumerate((pem, b"a comment\n" + pem, pem.replace(b"\n", b"\r\n"))):
        path = tmp_path / f"{number}.pem"
        path.touch(mode=0o600)
        path.write_bytes(text)
        assert read_key(path).public_base64 == made.public_base64


def test_a_key_that_cannot_be_written_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadUsage, match="No space left"):
        make_key(tmp_path / "k.pem")
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_created_once_and_is_private(tmp_path: Path) -> None:
    """Mode 0600, never overwritten, rejected when others may read it; its entry is TOML."""
    path = tmp_path / "deep" / "key.pem"
    made = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).public_base64 == made.public_base64
    with pytest.raises(BadUsage, match="exists"):
        make_key(path)
    entry = tomllib.loads(principal_entry('odd "name"\\', "host-1", made))["principals"][0]
    assert entry["name"] == 'odd "name"\\'
    assert entry["keys"] == [{"id": made.key_id, "ed25519": made.public_base64}]
    path.chmod(0o644)
    with pytest.raises(BadUsage, match="chmod"):
        read_key(path)
    with pytest.raises(BadUsage, match="agent init"):
        read_key(tmp_path / "none")
    other = tmp_path / "other"
    other.touch(mode=0o600)
    with pytest.raises(BadUsage, match="not a private key"):
        read_key(other)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"gateway": ""}, "gateways"), ({"gateway": "ftp://x"}, "gateways"),
        ({"gateway": "http://"}, "gateways"), ({"gateway": "http://a,b"}, "gateways"),
        ({"spool_bytes": 1}, "spool"), ({"uploads": 0}, "uploads"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(how: dict, message: str) -> None:
    """The error is raised before any input is opened."""
    with pytest.raises(BadUsage, match=message):
        AgentSettings(**{"gateway": "http://a", **how})


def test_freshness_makes_large_batches() -> None:
    plain = AgentSettings(gateway="http://a").for_batching()
    assert plain == BatchLimits(bytes_max=4 << 20, age_s_max=1)
    fresh = AgentSettings(gateway="http://a", freshness_s=60).for_batching()
    assert fresh == BatchLimits(
        bytes_max=BATCH_BYTES_MAX, records_max=300_000, age_s_max=1, freshness_s=60
    )


@pytest.mark.parametrize("batch_bytes", [1, 1000, 1_400_001, 4 << 20, BATCH_BYTES_MAX])
def test_blocks_fill_a_batch_and_none_exceeds_it(batch_bytes: int) -> None:
    block = BlockLimits.of(BatchLimits(bytes_max=batch_bytes, records_max=9))
    blocks = batch_bytes // block.cost_bytes_max
    assert 0.99 * batch_bytes <= blocks * block.cost_bytes_max <= batch_bytes
    assert block.cost_bytes_max <= BLOCK_COST_BYTES_MAX
    assert block.records_max == 9


@pytest.mark.parametrize(
    "gateway", ["a:1", "ftp://a", "http://", "http://a?b", "http://a..b", f"http://{'a' * 64}.b"]
)
def test_a_gateway_whose_name_no_resolver_accepts_is_rejected(gateway: str) -> None:
    with pytest.raises(BadUsage, match="base URLs"):
        AgentSettings(gateway=gateway)


def test_settings_checked_on_use_are_rejected() -> None:
    """Batches, time zone and resource."""
    with pytest.raises(BadUsage, match="freshness"):
        AgentSettings(gateway="http://a", freshness_s=-1).for_batching()
    with pytest.raises(BadUsage, match="batch bytes"):
        BatchLimits(bytes_max=1 << 30)
    with pytest.raises(BadUsage, match="time zone"):
        AgentSettings(gateway="http://a", timezone="Nowhere/Else").zone()
    with pytest.raises(BadUsage, match="key=value"):
        AgentSettings(gateway="http://a", resource=("novalue",)).for_spool()


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
        ({"doors_listen": "127.0.0.1:9"}, "doors_listen has no effect without a door over HTTP"),
        ({"door_tokens": KEY}, "door_tokens has no effect without a door over HTTP"),
        (
            {"doors": ("forward",), "forward_listen": "127.0.0.1:24224", "door_tokens": KEY},
            "door_tokens has no effect without a door over HTTP or gRPC",
        ),
        ({"door_tls_cert": PEM}, "door_tls_cert has no effect without doors"),
        ({"syslog": (f"{UDP}?cert={PEM}",)}, "files of TLS need an address tls://"),
        ({"syslog": (TLS,)}, r"needs a certificate: write tls://HOST:PORT\?cert=FILE"),
        ({"syslog": (f"{TLS}?key={PEM}",)}, "needs a certificate"),
        ({"syslog": (f"{TLS}?cert={PEM}&ca={PEM}",)}, "there are cert, key and client_ca"),
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
    ("how", "give_up_s", "message"), [({"tls_key": PEM}, 0.0, "tls_key"), ({}, -1.0, "give_up_s")]
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
        {"doors": ("otlp",), "door_tokens": KEY},
        {"syslog": (UDP, f"{TLS}?cert={PEM}&client_ca={PEM}")},
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
