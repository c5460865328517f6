"""The console's API over a real deployment with planted trouble, without a browser."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from structlog.testing import capture_logs
from support.console_world import (
    AGENT,
    HOSTILE_AGENT,
    OPERATOR,
    SETTINGS,
    VIEWER,
    ConsoleWorld,
    frame,
    served_console,
)
from support.constants import settings_with

from sluice_console.costs import RequestRates
from sluice_console.gateways import GatewayAddresses, GatewayCounters
from sluice_console.settings import ConsoleSettings
from sluice_protocol.keys import blob_key
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import Digest

WRITES = {"conflict_resolved", "request_refused"}


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def send(
    world: ConsoleWorld,
    path: str,
    *,
    token: str = OPERATOR,
    method: str = "GET",
    body: Any = None,
    **fields: str,
) -> Answer:
    given = {name.replace("_", "-"): value for name, value in fields.items()}
    if token:
        given["Authorization"] = f"Bearer {token}"
    data = None
    if body is not None:
        data, given["Content-Type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(world.url + path, data=data, headers=given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return Answer(found.status, found.headers, found.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with served_console(tmp_path_factory.mktemp("console")) as found:
        yield found


def test_the_overview_names_every_planted_trouble(world: ConsoleWorld) -> None:
    found = send(world, "/v1/overview").json
    titles = {item["title"] for item in found["attention"]}
    assert "1 batch held back" in titles
    assert "2 conflicts without a decision" in titles
    assert "1 agent has gaps" in titles
    assert [one["problem"] for one in found["services"]] == ["", ""]
    assert found["numbers"]["waiting_batches"] > 0, "batches are enqueued and nothing ingests them"
    assert found["accepted_until_unix_ns"] is not None
    assert len(found["history"]["at_unix_ns"]) == len(found["history"]["series"]["held"])


def test_the_api_describes_itself(world: ConsoleWorld) -> None:
    found = send(world, "/openapi.json").json
    assert {"/v1/overview", "/v1/audits", "/v1/query", "/static/{path}"} <= set(found["paths"])
    schemas = found["components"]["schemas"]
    assert schemas["UnreadableRecord"]["properties"]["kind"] == {"enum": ["unreadable"]}


def test_agents_are_listed_with_their_gaps_first(world: ConsoleWorld) -> None:
    page = send(world, "/v1/agents").json
    assert page["agents"][0]["agent_id"] == AGENT
    assert page["agents"][0]["missing"] == 6
    assert page["total"] == 4
    detail = send(world, f"/v1/agents/boots?{urlencode({'agent': AGENT})}").json
    (gap,) = detail["boots"][0]["gaps"]
    assert (gap["seq_start"], gap["seq_end"], gap["tail"]) == (9, 14, False)
    first = send(world, "/v1/agents?limit=1&order=name").json
    second = send(world, f"/v1/agents?limit=1&order=name&after={first['next']}").json
    assert first["agents"][0]["agent_id"] == HOSTILE_AGENT
    assert second["agents"][0]["agent_id"] == "db-2"
    assert send(world, "/v1/agents?text=WEB").json["total"] == 2


def test_a_conflict_shows_the_records_that_differ(world: ConsoleWorld) -> None:
    page = send(world, f"/v1/conflicts?agent={AGENT}").json
    (one,) = page["conflicts"]
    records = send(world, f"/v1/conflicts/{one['id']}/records").json
    (pair,) = records["pairs"]
    assert pair["seq"] == 1
    assert "200" in pair["accepted"]
    assert "500" in pair["submitted"]
    assert not records["more"]


def test_only_operators_resolve_and_the_name_is_recorded(world: ConsoleWorld) -> None:
    (one,) = send(world, "/v1/conflicts?agent=db-2").json["conflicts"]
    path = f"/v1/conflicts/{one['id']}/resolve"
    body = {"action": "accept_existing", "note": "checked <b>both</b>"}
    with capture_logs() as logged:
        assert send(world, path, method="POST", body=body, token=VIEWER).status == 403
        assert send(world, f"/v1/conflicts/{one['id']}").json["decision"] is None
        assert send(world, path, method="POST", body=body).status == 200
    refused, written = [one for one in logged if one["event"] in WRITES]
    assert (refused["event"], refused["code"]) == ("request_refused", "forbidden")
    assert refused["path"] == path
    assert (written["event"], written["by"]) == ("conflict_resolved", "operator:otto")
    assert (written["conflict"], written["action"]) == (one["id"], "accept_existing")
    decision = send(world, f"/v1/conflicts/{one['id']}").json["decision"]
    assert decision["decided_by"] == "operator:otto"
    assert decision["note"] == body["note"]


def test_a_damaged_side_of_a_conflict_is_named(world: ConsoleWorld) -> None:
    (one,) = send(world, "/v1/conflicts?agent=db-2").json["conflicts"]
    digest = Digest(one["submitted_frame_sha256"])
    path = world.store_folder / blob_key(digest)
    kept = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(b"x" + kept[1:])
    try:
        found = send(world, f"/v1/conflicts/{one['id']}/records").json
        assert found["accepted_problem"] == ""
        assert "damaged" in found["submitted_problem"]
        path.unlink()
        found = send(world, f"/v1/conflicts/{one['id']}/records").json
        assert "missing" in found["submitted_problem"]
    finally:
        path.write_bytes(kept)


def test_the_queue_lists_lanes_and_held_batches(world: ConsoleWorld) -> None:
    found = send(world, "/v1/queue").json
    assert {lane["condition"] for lane in found["lanes"]} == {"sound"}
    (held,) = found["held"]
    assert held["reason"] == "blob_missing"


def test_batches_are_listed_newest_first_and_in_pages(world: ConsoleWorld) -> None:
    found = send(world, "/v1/batches").json
    times = [one["accepted_at_unix_ns"] for one in found["batches"]]
    assert len(times) == 7, "all but the held one are indexed"
    assert times == sorted(times, reverse=True)
    seen: list[str] = []
    query = ""
    while True:
        page = send(world, f"/v1/batches?limit=3{query}").json
        seen += [one["attempt_id"] for one in page["batches"]]
        if page["next"] is None:
            break
        query = f"&before={page['next']}"
    assert seen == [one["attempt_id"] for one in found["batches"]]
    mine = send(world, f"/v1/batches?agent={AGENT}&limit=2").json
    rest = send(world, f"/v1/batches?{urlencode({'agent': AGENT, 'after': mine['next']})}").json
    starts = [one["seq_start"] for one in (*mine["batches"], *rest["batches"])]
    assert starts == [0, 3, 6, 15, 18]


def test_the_path_of_a_batch_is_verified(world: ConsoleWorld) -> None:
    (path,) = send(world, f"/v1/batches/path?subject={quote(f'{AGENT}/b1/0-2')}").json
    assert path["blob"] == "ok"
    assert len(path["quarantined"]) == 1
    for subject in (f"{AGENT}/b1/1", path["manifest_key"]):
        (same,) = send(world, f"/v1/batches/path?subject={quote(subject)}").json
        assert same["manifest"] == path["manifest"], subject
    assert send(world, f"/v1/batches/path?subject={quote(f'{AGENT}/b1/10')}").json == []
    (path,) = send(world, f"/v1/batches/path?subject={quote('web-2/b1/0-2')}").json
    assert path["blob"].startswith("blob_missing")
    assert path["mark"]
    assert send(world, "/v1/batches/path?subject=nothing").status == 400


def test_records_come_from_the_query_service(world: ConsoleWorld) -> None:
    found = send(world, f"/v1/query?query=%7Bagent%3D%22{AGENT}%22%7D&from=1h")
    records = [json.loads(line) for line in found.body.splitlines()]
    assert sum("body" in one for one in records) == 15
    assert "partial" in records[-1]["summary"]
    assert found.headers["Content-Type"] == "application/x-ndjson"
    assert send(world, "/v1/query?from=never").status == 400


def test_a_login_gets_a_cookie_that_scripts_and_other_sites_cannot_use(world: ConsoleWorld) -> None:
    found = send(world, "/v1/login", token="", method="POST", body={"token": OPERATOR})
    cookie = found.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    pair = cookie.partition(";")[0]
    assert send(world, "/v1/overview", token="", Cookie=pair).status == 200
    (one,) = send(world, f"/v1/conflicts?agent={AGENT}").json["conflicts"]
    body = {"action": "accept_existing"}
    path = f"/v1/conflicts/{one['id']}/resolve"
    refused = send(world, path, token="", method="POST", body=body, Cookie=pair)
    assert refused.status == 403, "a write needs the CSRF token"
    wrong = send(
        world, path, token="", method="POST", body=body, Cookie=pair, X_CSRF_Token="0" * 64
    )
    assert wrong.status == 403
    right = found.json["csrf"]
    done = send(world, path, token="", method="POST", body=body, Cookie=pair, X_CSRF_Token=right)
    assert done.status == 200
    left = send(
        world, "/v1/logout", token="", method="POST", body={}, Cookie=pair, X_CSRF_Token=right
    )
    assert left.status == 200
    assert send(world, "/v1/overview", token="", Cookie=pair).status == 401


def test_logins_are_logged_without_their_tokens(world: ConsoleWorld) -> None:
    with capture_logs() as logged:
        send(world, "/v1/login", token="", method="POST", body={"token": VIEWER})
        send(world, "/v1/login", token="", method="POST", body={"token": "a wrong token"})
    (login,) = [one for one in logged if one["event"] == "console_login"]
    assert (login["by"], login["role"], login["peer"]) == ("vera", "viewer", "127.0.0.1")
    (refused,) = [one for one in logged if one["event"] == "request_refused"]
    assert (refused["code"], refused["peer"]) == ("unauthenticated", "127.0.0.1")
    assert VIEWER not in str(logged)
    assert "a wrong token" not in str(logged)


def test_a_login_behind_tls_gets_a_secure_cookie(world: ConsoleWorld) -> None:
    origin = world.url.replace("http://", "https://")
    found = send(world, "/v1/login", token="", method="POST", body={"token": VIEWER}, Origin=origin)
    assert "Secure" in found.headers["Set-Cookie"]


@pytest.mark.parametrize("path", ["/v1/overview", "/v1/agents", "/v1/query", "/v1/overview/stream"])
def test_unknown_visitors_read_nothing(world: ConsoleWorld, path: str) -> None:
    assert send(world, path, token="").status == 401
    assert send(world, path, token="wrong").status == 401
    assert send(world, path, token="", Cookie="sluice_console=guess").status == 401


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/v1/session", "/v1/overview", "/nothing"])
def test_every_response_has_the_security_fields(world: ConsoleWorld, path: str) -> None:
    fields = send(world, path, token="").headers
    policy = fields["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert fields["X-Content-Type-Options"] == "nosniff"
    assert fields["X-Frame-Options"] == "DENY"


def test_the_page_needs_no_other_host_and_stays_small(world: ConsoleWorld) -> None:
    root = Path(__file__).parents[3] / "console" / "sluice_console" / "static"
    names = [str(one.relative_to(root)) for one in root.rglob("*") if one.is_file()]
    served = [
        name for name in names if not name.rpartition("/")[2].startswith(("LICENSE", "vendor"))
    ]
    size = 0
    for name in served:
        found = send(world, f"/static/{name}", Accept_Encoding="gzip")
        assert found.status == 200, name
        size += len(found.body)
        text = (root / name).read_text()
        if not name.startswith("vendor/"):
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
            assert "https://" not in text, name
            assert "innerHTML" not in text, name
    print(f"static files: {size} bytes compressed")
    assert size <= 250_000
    assert send(world, "/static/../app.py").status == 404
    etag = send(world, "/static/app.js").headers["ETag"]
    assert send(world, "/static/app.js", If_None_Match=etag).status == 304


def test_failed_logins_are_limited(tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        for _ in range(5):
            bad = send(world, "/v1/login", token="", method="POST", body={"token": "guess"})
            assert bad.status == 401
        limited = send(world, "/v1/login", token="", method="POST", body={"token": OPERATOR})
        assert limited.status == 429
        assert "too many failed logins" in limited.json["detail"]


def test_an_empty_deployment_has_pages_that_lead_on(tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        found = send(world, "/v1/overview").json
        assert "The store was never tested" in {item["title"] for item in found["attention"]}
        assert send(world, "/v1/agents").json["total"] == 0
        assert send(world, "/v1/batches").json["batches"] == []
        assert send(world, "/v1/conflicts").json["conflicts"] == []
        assert send(world, "/v1/audits").json["audits"] == []
        assert send(world, "/v1/store").json["doctor"] is None


def test_without_services_the_store_is_enough(tmp_path: Path) -> None:
    """A stopped gateway is named, agents come from a listing, and Explore names the next step."""
    with served_console(tmp_path, services=False) as world:
        found = send(world, "/v1/overview").json
        assert "Gateway gw-test stopped reporting" in {one["title"] for one in found["attention"]}
        page = send(world, "/v1/agents").json
        assert (page["source"], page["with_gaps"]) == ("store", 1)
        refused = send(world, "/v1/query")
        assert refused.status == 404
        assert "sluice query serve" in refused.json["detail"]


def test_unreachable_services_are_named_with_what_to_do(tmp_path: Path) -> None:
    dead = replace(SETTINGS, reconciler="http://127.0.0.1:9", query="http://127.0.0.1:9")
    with served_console(tmp_path, dead, services=False) as world:
        titles = {one["title"] for one in send(world, "/v1/overview").json["attention"]}
        assert "The reconciler service does not respond" in titles
        assert "The query service does not respond" in titles
        assert "no reconciler sent its report" in send(world, "/v1/agents").json["partial"]
        refused = send(world, "/v1/query")
        assert refused.status == 503
        assert "start it or correct its URL" in refused.json["detail"]


def test_a_wrong_token_of_a_service_is_named(tmp_path: Path) -> None:
    with served_console(tmp_path, replace(SETTINGS, query_token="other")) as world:
        services = {
            one["service"]: one["problem"] for one in send(world, "/v1/overview").json["services"]
        }
        assert services["reconciler"] == ""
        assert "set query_token to its api_token" in send(world, "/v1/query").json["detail"]


def test_a_lost_store_is_named_on_each_page(tmp_path: Path) -> None:
    with served_console(tmp_path, services=False) as world:
        world.store_folder.rename(tmp_path / "away")
        (tmp_path / "store").write_text("not a directory")
        found = send(world, "/v1/queue")
        assert found.status >= 500
        assert found.json["detail"]


def test_without_tokens_visitors_of_loopback_are_viewers(tmp_path: Path) -> None:
    open_settings = settings_with(ConsoleSettings, listen="127.0.0.1:0", sample_s=1.0)
    with served_console(tmp_path, open_settings, services=False) as world:
        me = send(world, "/v1/session", token="").json
        assert (me["name"], me["role"], me["needs_login"]) == ("local", "viewer", False)
        (one,) = send(world, f"/v1/conflicts?agent={AGENT}", token="").json["conflicts"]
        path = f"/v1/conflicts/{one['id']}/resolve"
        body = {"action": "accept_existing"}
        assert send(world, path, token="", method="POST", body=body).status == 403
        assert send(world, "/v1/session", token="", Host="evil.test").status == 403


def test_a_proxy_names_users_from_its_address_only(tmp_path: Path) -> None:
    proxied = settings_with(
        ConsoleSettings,
        listen="127.0.0.1:0",
        sample_s=1.0,
        proxy_addresses="127.0.0.1",
        proxy_operators="otto",
    )
    with served_console(tmp_path, proxied, services=False) as world:
        assert send(world, "/v1/overview", token="").status == 401
        me = send(world, "/v1/session", token="", X_Forwarded_User="otto").json
        assert (me["role"], bool(me["csrf"])) == ("operator", True)
        assert send(world, "/v1/session", token="", X_Forwarded_User="mia").json["role"] == "viewer"
    elsewhere = replace(proxied, proxy_addresses="192.0.2.1")
    with served_console(tmp_path / "two", elsewhere, services=False) as world:
        assert send(world, "/v1/overview", token="", X_Forwarded_User="otto").status == 401


def test_the_cost_of_a_day_is_estimated_for_a_bucket(world: ConsoleWorld) -> None:
    cost = send(world, "/v1/overview").json["cost"]
    assert cost["basis"] == "batches"
    assert cost["at_least"], "no audit has listed the blobs"
    assert {one["name"] for one in cost["parts"]} == {"puts", "gets", "lists"}
    assert "as of" in cost["price_source"]
    assert send(world, "/v1/overview").json["history"]["series"]["cost_usd_per_day"][-1] is not None


def test_the_calls_of_a_gateway_are_read_from_its_counters(tmp_path: Path) -> None:
    with served_console(tmp_path, trouble=False) as world:
        world.accept(frame("late-1", 0, ["a"]))
        assert world.gateway is not None
        url = f"http://127.0.0.1:{world.gateway.port}"

        async def measure() -> tuple[RequestRates | None, RequestRates | None]:
            async with aiohttp.ClientSession() as session:
                gateways = GatewayAddresses((url,), session)
                counters = GatewayCounters(gateways, SystemClock())
                first = await counters.read()
                await asyncio.to_thread(world.accept, frame("late-1", 1, ["b"]))
                second = await counters.read()
                assert [one.problem for one in (*first.health, *second.health)] == ["", ""]
                return first.rates, second.rates

        first, second = asyncio.run(measure())
        assert first is None, "one reading is no rate"
        assert second is not None
        assert second.per_s.puts > 0
        assert second.basis == "counters"
