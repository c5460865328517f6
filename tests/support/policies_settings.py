"""Settings for tests of the policies: the pinned file, unchanged or modified."""

from pathlib import Path

from sluice_policies.settings import Settings
from sluice_policies.settings_file import parse_settings

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
