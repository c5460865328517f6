"""A wrong name is answered by the name that means the same, then by a similar one, or by none."""

from pathlib import Path

import pytest
from support.commands import sluice

from sluice_cli.shell.commands import COMMANDS
from sluice_cli.shell.settings import COMMANDS_MEANT, OPTIONS_MEANT


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("uo", "sluice up"),
        ("qeury", "sluice query"),
        ("search", "sluice query"),
        ("grep", "sluice query"),
        ("traces", "sluice query --kind spans"),
        ("health", "sluice status"),
        ("ui", "sluice console"),
        ("query --until 1h", "--to"),
        ("query -n 5", "--limit"),
        ("query --interval 1m", "--step"),
        ("query --frm 1h", "--from"),
        ("gaps --output json", "--json"),
        ("query --direction forward", "--order"),
        ("query --tz UTC", "--zone"),
        ("metrics m --groupby x", "--by"),
        ("up -f", "--verbose"),
        ("up --follow", "--verbose"),
        ("gateway --host x", "--listen"),
        ("gateway --bind x", "--listen"),
        ("gaps --path /x", "--store"),
        ("rebuild --check", "--verify"),
        ("doctor --noop", "--dry-run"),
        ("up --host x", "--port"),
        ("maintain --interval-s 60", "--every-s"),
        ("maintain --audit.interval-s 60", "--every-s"),
        ("up --listen 127.0.0.1:1", "--port"),
        ("agent run --gateway http://a --path x", "--paths"),
        ("delete --agent a", "--where"),
        ("delete --older-than-days 30", "--to"),
        ("audit verify --trusted-keys x", "--key-file"),
        ("policies prove --bucket-policy x", "--documents"),
        ("agent run --gateway http://a --otlp 127.0.0.1:1", "--doors"),
    ],
)
def test_a_wrong_name_is_answered_by_its_meaning(words: str, meant: str, tmp_path: Path) -> None:
    done = sluice(*words.split(), folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"did you mean `{meant}`?" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["frobnicate", "query --xyzzy", "status --follow", "gaps -f"])
def test_nothing_is_suggested_where_nothing_is_meant(words: str, tmp_path: Path) -> None:
    done = sluice(*words.split(), folder=tmp_path)
    assert done.returncode == 2
    assert "did you mean" not in done.stderr
    assert "--help` lists all" in done.stderr


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("spark ingest --master local", "that of `spark-submit`, or of the variable MASTER"),
        ("policies diff --profile x", "AWS_ENDPOINT_URL_S3, AWS_PROFILE and AWS_CA_BUNDLE"),
        ("console --policies.target x", "`target` in their settings file"),
        ("init --margin-s 9", "the setting is fixed now, at an hour: remove it"),
        ("maintain --compact.dedupe-window-s 9", "the setting is fixed now, at a day: remove it"),
    ],
)
def test_what_is_not_an_option_is_named_with_its_place(
    words: str, place: str, tmp_path: Path
) -> None:
    done = sluice(*words.split(), folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert place in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("--filter", "level=error"), """query '{level="error"}'"""),
        (("--filter=level!=error",), """query '{level!="error"}'"""),
        (("--filter", "attributes.http.status >= 500"), "query '{} | http_status >= 500'"),
        (("--filter", "!attributes.path"), """query '{path=""}'"""),
        (("--filter", "resource.k"), """query '{k!=""}'"""),
        (("--attribute", 'k=a"b'), """query '{k="a\\"b"}'"""),
        (("--agent", "web-1"), """query '{agent="web-1"}'"""),
        (("--text", "a b"), "query -q 'a b'"),
        (("-q", "x", "-i"), """query '{} |~ "(?i)TEXT"'"""),
        (("--regex", "-q", "x"), """query '{} |~ "PATTERN"'"""),
        (("--metric", "cpu", "--agg", "max"), "metrics cpu"),
        (("--top", "attributes.path"), "fields attributes.path"),
        (("--of", "duration_ns"), "fields duration_ns"),
        (("--histogram",), "query --plot"),
        (("--newest-first",), "query --order newest"),
        (("--tail",), "query --follow"),
    ],
)
def test_an_option_of_another_form_names_the_command(
    words: tuple[str, ...], written: str, tmp_path: Path
) -> None:
    done = sluice("query", *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no such option: write `sluice {written}`, option=" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_service_runs_in_the_foreground(tmp_path: Path) -> None:
    done = sluice("up", "-d", folder=tmp_path)
    assert "a command runs in the foreground; docs/deploy.md shows it as a service" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_meaning_exists() -> None:
    """Each command of the table exists; no word of another tool is a command here."""
    assert {one.split()[0] for one in COMMANDS_MEANT.values()} <= {*COMMANDS, "--version"}
    assert not set(COMMANDS_MEANT) & set(COMMANDS)
    reference = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"
    text = reference.read_text(encoding="utf-8")
    for wanted in OPTIONS_MEANT.values():
        for option in wanted:
            assert option in text, option
