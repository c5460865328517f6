"""Real users for tests of live policies: a profile for each role, and a server with these users.

The settings of a test are the pinned file, unchanged or modified.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.store_versitygw import ACCESS, SECRET, Server, binary, free_port, running

from sluice_policies.settings import RoleName, Settings, parse_settings

ADMIN_PROFILE = "admin"
BUCKET = "policies-live"


def profile(name: RoleName) -> str:
    return f"as-{name.value}"


def write_profiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a credentials file for the administrator and each role, and select it for the SDK."""
    people = {ADMIN_PROFILE: (ACCESS, SECRET)}
    people |= {profile(n): (f"sluice-{n.value}", f"secret-of-{n.value}") for n in RoleName}
    path = folder / "credentials"
    path.write_text(
        "".join(
            f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
            for name, (key, secret) in people.items()
        )
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def settings_file(
    folder: Path, target: str, *, tls: bool, extra: str = "", profiles: bool = True
) -> Path:
    """Write a settings file for the bucket, with or without a profile for each role."""
    roles = text_from("[roles.gateway]")
    for name in RoleName if profiles else ():
        mark = f"[roles.{name.value}]\n"
        roles = roles.replace(mark, f'{mark}profile = "{profile(name)}"\n')
    network = "" if tls else "[network]\nrequire_tls = false\n"
    head = (
        f'version = 1\ntarget = "{target}"\n[bucket]\nname = "{BUCKET}"\n'
        f'account = "111122223333"\nprefix = "prod/"\nregion = "us-east-1"\n'
    )
    path = folder / f"policies-{target}-{tls}.toml"
    path.write_text(f"{head}{network}{extra}{roles}")
    return path


def _create_user(endpoint: str, access: str, secret: str) -> None:
    login = ["--access", ACCESS, "--secret", SECRET, "--endpoint-url", endpoint]
    user = ["--access", access, "--secret", secret, "--role", "user"]
    subprocess.run(
        [str(binary()), "admin", *login, "create-user", *user], check=True, capture_output=True
    )


@contextmanager
def versitygw_with_users(folder: Path) -> Iterator[Server]:
    """Run versitygw with its own accounts, one user for each role."""
    data, versions, people = folder / "data", folder / "versions", folder / "iam"
    sidecar = folder / "sidecar"
    for path in (data, versions, people, sidecar):
        path.mkdir(parents=True, exist_ok=True)
    port = free_port()
    arguments = [str(binary()), "--quiet", "--port", f"127.0.0.1:{port}", "--iam-dir", str(people)]
    # A policy of seven roles exceeds the 4 KiB limit of an extended attribute on ext4.
    posix = ["posix", "--sidecar", str(sidecar), "--versioning-dir", str(versions), str(data)]
    with running([*arguments, *posix], port) as server:
        for name in RoleName:
            _create_user(server.endpoint, f"sluice-{name.value}", f"secret-of-{name.value}")
        yield server


GOLDEN = Path(__file__).parents[1] / "golden" / "policies"
TEXT = (GOLDEN / "settings.toml").read_text("utf-8")


def settings(*changes: tuple[str, str]) -> Settings:
    """Return the pinned settings with texts replaced; each text must occur."""
    text = TEXT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_settings(text, "settings.toml")


def bare_settings() -> Settings:
    """Return minimal settings: the whole bucket, no key, no endpoint, no option."""
    start = text_from("[roles.gateway]")
    head = 'version = 1\n[bucket]\nname = "example-sluice"\naccount = "111122223333"\n'
    return parse_settings(head + start, "settings.toml")


def text_from(mark: str) -> str:
    """Return the pinned text from a mark to its end."""
    return TEXT[TEXT.index(mark) :]
