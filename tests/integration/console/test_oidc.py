"""Logins at a real identity provider, and identity tokens that must be refused."""

import asyncio
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import CHROMIUM, watch
from support.console_world import SETTINGS, console_over, deployment, served_console
from support.oidc_server import CLIENT, SECRET

from sluice_console.settings import ConsoleSettings, OidcSettings
from sluice_protocol.errors import BadUsage

SERVER = Path(__file__).parents[2] / "support" / "oidc_server.py"
NAVIGATION = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


@dataclass
class Login:
    """A browser without a page: a client with cookies, the console and the provider."""

    client: aiohttp.ClientSession
    console: str
    provider: str

    async def faults(self, **faults: object) -> None:
        async with self.client.post(f"{self.provider}/faults", json=faults) as response:
            assert response.status == 200

    async def follow(self, url: str, **fields: str) -> str:
        async with self.client.get(url, headers=fields, allow_redirects=False) as response:
            assert response.status in (302, 303), await response.text()
            return response.headers["Location"]

    async def callback(self) -> str:
        """Begin a login, log in at the provider, and return the URL of the way back."""
        begun = await self.follow(f"{self.console}/v1/oidc/login")
        assert begun.startswith(f"{self.provider}/authorize?")
        return await self.follow(begun)

    async def log_in(self) -> str:
        return await self.follow(await self.callback(), **NAVIGATION)

    async def session(self) -> dict[str, Any]:
        async with self.client.get(f"{self.console}/v1/session") as response:
            found: dict[str, Any] = await response.json()
            return found


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with subprocess.Popen([sys.executable, SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def settings_for(provider: str, console: str, **more: str) -> ConsoleSettings:
    oidc = OidcSettings(
        issuer=provider,
        client_id=CLIENT,
        client_secret=SECRET,
        redirect_url=f"{console}/v1/oidc/callback",
        operator_roles="ops",
        **more,
    )
    return replace(SETTINGS, viewers="", operators="", oidc=oidc)


def run_story(
    folder: Path, provider: str, story: Callable[[Login], Awaitable[None]], **more: str
) -> None:
    async def run() -> None:
        async with deployment(folder, trouble=False) as world:
            port = free_port()
            settings = settings_for(provider, f"http://127.0.0.1:{port}", **more)
            settings = replace(settings, listen=f"127.0.0.1:{port}")
            jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address
            async with (
                console_over(world, settings) as url,
                aiohttp.ClientSession(cookie_jar=jar) as client,
            ):
                login = Login(client, url, provider)
                await login.faults()
                await story(login)

    asyncio.run(run())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_user_of_the_provider_becomes_an_operator(tmp_path: Path, provider: str) -> None:
    async def story(login: Login) -> None:
        before = await login.session()
        assert (before["needs_login"], before["oidc"], before["login_exists"]) == (
            True, True, False,
        )  # fmt: skip
        assert await login.log_in() == "/"
        found = await login.session()
        assert (found["name"], found["role"], found["needs_login"]) == ("olga", "operator", False)
        cookies = {one.key: one for one in login.client.cookie_jar}
        assert cookies["sluice_console"]["samesite"] == "Strict"
        assert cookies["sluice_console"]["httponly"]
        assert "sluice_console_login" not in cookies

    run_story(tmp_path, provider, story)


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({"groups": ["ops", "dev"]}, "operator"),
        ({"groups": "ops"}, "operator"),
        ({"groups": ["dev"]}, "viewer"),
        ({"groups": ["sales"]}, None),
        ({"groups": None}, None),
        ({"groups": {"ops": True}}, None),
        ({"groups": [["ops"]]}, None),
    ],
)
def test_roles_are_those_of_a_claim(
    tmp_path: Path, provider: str, claims: dict[str, object], role: str | None
) -> None:
    async def story(login: Login) -> None:
        await login.faults(claims=claims)
        assert await login.log_in() == ("/" if role else "/#overview?login=role")
        assert (await login.session())["role"] == (role or "")

    run_story(tmp_path, provider, story, viewer_roles="dev")


TIMES = ("exp", "iat", "nbf")
"""Claims whose numbers below are seconds from now: test names must be equal in all processes."""


@pytest.mark.daily(8)
@pytest.mark.parametrize(
    "faults",
    [
        {"claims": {"iss": "https://elsewhere.example"}},
        {"claims": {"aud": "another-client"}},
        {"claims": {"aud": [CLIENT, "another-client"]}},
        {"claims": {"aud": [CLIENT, "another-client"], "azp": "another-client"}},
        {"claims": {"exp": -3600, "iat": -7200}},
        {"claims": {"exp": None}},
        {"claims": {"iat": 3600}},
        {"claims": {"nbf": 3600}},
        {"claims": {"nonce": "of another login"}},
        {"claims": {"nonce": None}},
        {"claims": {"sub": None}},
        {"signed": "none"},
        {"signed": "hmac"},
        {"signed": "other key"},
        {"response_issuer": "https://elsewhere.example"},
    ],
    ids=str,
)
def test_an_invalid_identity_token_is_refused(
    tmp_path: Path, provider: str, faults: dict[str, Any]
) -> None:
    now_s = int(time.time())
    claims = {
        name: value + now_s if name in TIMES and value else value
        for name, value in faults.get("claims", {}).items()
    }

    async def story(login: Login) -> None:
        await login.faults(**{**faults, "claims": claims})
        assert await login.log_in() == "/#overview?login=token"
        assert (await login.session())["needs_login"]

    run_story(tmp_path, provider, story)


def test_a_response_is_accepted_once_and_only_from_the_browser_that_began(
    tmp_path: Path, provider: str
) -> None:
    async def story(login: Login) -> None:
        back = await login.callback()
        async with aiohttp.ClientSession() as stranger:
            other = Login(stranger, login.console, login.provider)
            assert await other.follow(back, **NAVIGATION) == "/#overview?login=state"
        assert await login.follow(back, **NAVIGATION) == "/"
        assert await login.follow(back, **NAVIGATION) == "/#overview?login=state"
        state = parse_qs(urlsplit(back).query)["state"][0]
        forged = f"{login.console}/v1/oidc/callback?code=guessed&state={state}"
        assert await login.follow(forged, **NAVIGATION) == "/#overview?login=state"

    run_story(tmp_path, provider, story)


def test_a_refusing_and_a_changed_provider_are_named(tmp_path: Path, provider: str) -> None:
    async def story(login: Login) -> None:
        await login.faults(configured_issuer="https://elsewhere.example")
        begun = await login.follow(f"{login.console}/v1/oidc/login")
        assert begun == "/#overview?login=provider"
        await login.faults(denied=True)
        assert await login.log_in() == "/#overview?login=provider"

    run_story(tmp_path, provider, story)


def test_only_a_navigation_may_come_from_another_origin(tmp_path: Path, provider: str) -> None:
    async def story(login: Login) -> None:
        for path in ("/", "/v1/oidc/callback"):
            for dest, mode in (("image", "no-cors"), ("iframe", "navigate"), ("empty", "cors")):
                fields = NAVIGATION | {"Sec-Fetch-Dest": dest, "Sec-Fetch-Mode": mode}
                async with login.client.get(
                    login.console + path, headers=fields, allow_redirects=False
                ) as response:
                    assert response.status == 403, (path, dest)
        async with login.client.get(f"{login.console}/", headers=NAVIGATION) as response:
            assert response.status == 200, "a link in a chat opens the console"
        async with login.client.get(f"{login.console}/v1/session", headers=NAVIGATION) as response:
            assert response.status == 403

    run_story(tmp_path, provider, story)


def test_incomplete_settings_are_refused() -> None:
    with pytest.raises(BadUsage, match=r"oidc\.client_id is missing"):
        OidcSettings(issuer="https://id.example")
    with pytest.raises(BadUsage, match="must end with /v1/oidc/callback"):
        OidcSettings(issuer="https://id.example", client_id="c", redirect_url="https://c.example")


@pytest.mark.console
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`")
def test_a_browser_logs_in_at_the_provider(browser: Browser, tmp_path: Path, provider: str) -> None:
    reset = urllib.request.Request(f"{provider}/faults", data=b"{}", method="POST")
    urllib.request.urlopen(reset, timeout=10).close()
    port = free_port()
    settings = settings_for(provider, f"http://127.0.0.1:{port}")
    with served_console(
        tmp_path, replace(settings, listen=f"127.0.0.1:{port}"), trouble=False
    ) as world:
        page = browser.new_context().new_page()
        errors = watch(page)
        page.goto(world.url)
        page.get_by_role("link", name="Log in at the identity provider").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible(timeout=20_000)
        expect(page.locator("body")).to_contain_text("olga")
        assert errors == []
        page.context.close()
