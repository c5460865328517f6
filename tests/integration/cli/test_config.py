"""Settings come from the file, the environment and flags; `config show` names the source."""

import json
from pathlib import Path

import pytest
from support.commands import sluice

from sluice_cli.shell.settings import REFERENCE
from sluice_cli.up.command import write_settings


def shown(folder: Path, **env: str) -> dict[str, tuple[str, str]]:
    done = sluice("config", "show", "gateway", "--json", **env, folder=folder)
    assert done.returncode == 0, done.stderr
    return {one["option"]: (one["value"], one["origin"]) for one in json.loads(done.stdout)}


def test_later_source_wins_and_is_named(tmp_path: Path) -> None:
    """A default, a value of the file, and one of the environment, each with its origin."""
    (tmp_path / "sluice.toml").write_text(
        'store = "file:///file"\n[gateway]\nworkers = 3\nlisten = "127.0.0.1:1"\n'
    )
    found = shown(tmp_path, SLUICE_GATEWAY_LISTEN="127.0.0.1:2")
    assert found["--workers"] == ("3", "sluice.toml")
    assert found["--listen"] == ("127.0.0.1:2", "SLUICE_GATEWAY_LISTEN")
    assert found["--store"] == ("file:///file", "sluice.toml")
    assert found["--collector-id"] == ("", "default")
    assert shown(tmp_path, SLUICE_STORE="file:///env")["--store"] == ("file:///env", "SLUICE_STORE")


def test_a_long_value_is_shown_completely(tmp_path: Path) -> None:
    """An operator copies it; a table of a fixed width would cut it."""
    url = f"file:///{'x' * 200}"
    (tmp_path / "sluice.toml").write_text(f'store = "{url}"\n')
    done = sluice("config", "show", "status", folder=tmp_path)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["command", "option", "value", "from"]
    assert ["status", "--store", url, "sluice.toml"] in lines


def test_the_settings_of_a_local_deployment_name_its_key_of_audits(tmp_path: Path) -> None:
    """Its audits are signed by that key, and the default is another one."""
    write_settings(tmp_path / "sluice.toml", "file:///s", tmp_path / "auditor.pem")
    named = f"{tmp_path}/auditor.pem"
    for command in ("audit show", "audit verify", "gc plan", "gc run"):
        done = sluice("config", "show", command.split()[0], "--json", folder=tmp_path)
        found = {(one["command"], one["option"]): one["value"] for one in json.loads(done.stdout)}
        assert found[command, "--key-file"] == named
        assert found[command, "--store"] == "file:///s"
    assert sluice("config", "show", "gateway", folder=tmp_path).returncode == 0


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    """From the file, from the environment, and inside of a URL; an empty secret stays empty."""
    (tmp_path / "sluice.toml").write_text(
        '[query.serve]\napi_token = "planted-1"\noperators = "alice=planted-2"\n'
        '[console]\nviewers = "alice=planted-3"\nquery = "http://me:planted-4@127.0.0.1:1"\n'
    )
    done = sluice(
        *("config", "show", "--json"), folder=tmp_path, SLUICE_RECONCILER_API_TOKEN="planted-5"
    )
    assert done.returncode == 0, done.stderr
    assert "planted" not in done.stdout
    found = {(one["command"], one["option"]): one for one in json.loads(done.stdout)}
    assert found["reconciler", "--api-token"]["value"] == "(secret)"
    assert found["reconciler", "--api-token"]["origin"] == "SLUICE_RECONCILER_API_TOKEN"
    assert found["query serve", "--operators"]["value"] == "(secret)"
    assert found["maintain", "--api-token"]["value"] == ""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("stor = 1\n", "stor"),
        ("[gateway]\nlistn = 1\n", "listn"),
        ("[gateway\n", "not TOML"),
    ],
)
def test_bad_settings_are_bad_usage(tmp_path: Path, settings: str, named: str) -> None:
    """An unknown key or a broken file ends with exit code 2 and names what is wrong."""
    (tmp_path / "sluice.toml").write_text(settings)
    done = sluice("gateway", folder=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr + done.stdout


def test_named_file_must_exist(tmp_path: Path) -> None:
    """A settings file that SLUICE_CONFIG names must exist."""
    done = sluice("gateway", SLUICE_CONFIG="nowhere.toml", folder=tmp_path)
    assert done.returncode == 2
    assert "nowhere.toml" in done.stderr


@pytest.mark.parametrize(
    ("settings", "arguments", "nearest", "key"),
    [
        ("[gatway]\nlisten = 1\n", ("gateway",), "gateway", "gatway"),
        ("stor = 1\n", ("query",), "store", "stor"),
        ("[gateway]\nlistn = 1\n", ("gateway",), "gateway.listen", "gateway.listn"),
        ("[gateway]\nlistn = 1\n", ("config", "show"), "gateway.listen", "gateway.listn"),
        (
            "[agent.run]\nfreshnes_s = 1\n",
            ("agent", "run"),
            "agent.run.freshness_s",
            "agent.run.freshnes_s",
        ),
        ("[agent]\nrunn = 1\n", ("agent", "run", "--gateway=http://a"), "agent.run", "agent.runn"),
        ("[agent.runn]\nonce = true\n", ("agent", "run"), "agent.run", "agent.runn"),
        ("[agent.parked]\nlst = 1\n", ("config", "show"), "agent.parked.list", "agent.parked.lst"),
        ("[maintain.gc]\ngrac_s = 5\n", ("maintain",), "maintain.gc.grace_s", "maintain.gc.grac_s"),
    ],
)
def test_an_unknown_key_is_one_line_with_the_nearest_one(
    tmp_path: Path, settings: str, arguments: tuple[str, ...], nearest: str, key: str
) -> None:
    (tmp_path / "sluice.toml").write_text(settings)
    (tmp_path / ".sluice").mkdir()
    done = sluice(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"sluice: unknown key in settings: the nearest known name is {nearest},"
        f" docs/reference/commands.md lists all, key=`{key}`,"
        " path=`sluice.toml`\n"
    )


@pytest.mark.parametrize(
    ("settings", "variables", "arguments", "named"),
    [
        (
            "[reconciler]\nshare_lanes = true\n",
            {},
            ("reconciler",),
            "key=`reconciler.share_lanes`, path=`sluice.toml`",
        ),
        (
            "[maintain.compact]\ndedupe_window_s = 60\n",
            {},
            ("config", "show"),
            "key=`maintain.compact.dedupe_window_s`, path=`sluice.toml`",
        ),
        (
            "",
            {"SLUICE_RECONCILER_SHARE_LANES": "1"},
            ("reconciler",),
            "variable=`SLUICE_RECONCILER_SHARE_LANES`",
        ),
    ],
)
def test_a_setting_that_is_a_constant_now_is_one_line(
    tmp_path: Path,
    settings: str,
    variables: dict[str, str],
    arguments: tuple[str, ...],
    named: str,
) -> None:
    (tmp_path / "sluice.toml").write_text(settings)
    (tmp_path / ".sluice").mkdir()
    done = sluice(*arguments, folder=tmp_path, **variables)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("sluice: the setting is fixed now")
    assert done.stderr.endswith(f": remove it, {named}\n")


def test_the_page_that_errors_name_exists() -> None:
    assert (Path(__file__).parents[3] / REFERENCE).is_file()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("gateway", "--listn", "x"), "unknown option: did you mean `--listen`?"),
        (("agent", "run"), "missing option: add `--gateway`, which `sluice agent run --help`"),
        (("agent", "run", "--gateway", "http://a", "--uploads", "two"), "--uploads"),
        (("agent", "rnu"), "unknown command: did you mean `sluice agent run`?"),
        (("reconciler", "stauts"), "did you mean `sluice reconciler status`?"),
        (("maintain", "list"), "values belong to options, which `sluice maintain --help` lists"),
        (("token", "list"), "unknown command: use one of create; `sluice token --help` lists all"),
        (("gc", "--dry-run"), "missing command: write `sluice gc "),
        (("gateway", "--store", "/srv/x"), "did you mean file:///srv/x? url=`/srv/x`"),
        (("status", "--store", ".sluice"), "did you mean file://./.sluice? url=`.sluice`"),
        (
            ("query", "--store", "http://minio:9000/bucket"),
            "another server is s3://bucket/prefix?endpoint=http://minio:9000, url=",
        ),
        (("status", "--store", "gs://bucket"), "use file:///path or s3://bucket/prefix, url="),
        (("query", "{}", "x"), "quote LogQL as one word, as in `sluice query '{level="),
        (("query", "-q"), "missing value: write it after the option, option=`-q`"),
        (("query", "--from", "-1h"), "as in `--from=-1h`, option=`--from`"),
        (("explain", "a", "b", "0"), "write a batch as one word, agent/boot/start-end"),
        (
            ("agent", "run", "--gateway", "http://a", "--paths", "a.log", "b.log"),
            "repeat `--paths` for each value, and quote a pattern so that the shell",
        ),
        (("frame", "inspect"), "missing argument: add FILE, which `sluice frame inspect --help`"),
        (("frame", "encode", "--agent-id", "a"), "did you mean `--agent` instead of `--agent-id`?"),
        (
            ("query", "--kind", "log"),
            "unknown value: did you mean logs? There are logs, metrics, entries, spans, option=",
        ),
        (
            ("query", "--kind", "x"),
            "unknown value: use one of logs, metrics, entries, spans, option=",
        ),
        (
            ("gateway", "--doors", "loki,otlp"),
            "repeat the option, as in `--doors loki --doors otlp`, option=`--doors`",
        ),
        (
            ("query", "--limit", "10k"),
            "must be a whole number: did you mean 10000? option=`--limit`, value=`10k`",
        ),
        (
            ("init", "--retry-horizon-s", "7d"),
            "must be a whole number of seconds: did you mean 604800? option=`--retry-horizon-s`",
        ),
        (("gateway", "--inflight-bytes-max", "512MiB"), "number of bytes: did you mean 536870912?"),
        (("agent", "run", "--gateway", "http://a", "--freshness-s", "1 min"), "did you mean 60?"),
        (("gateway", "--door-flush-ms", "0.5s"), "of milliseconds: did you mean 500? option="),
        (
            ("gateway", "--workers", "two"),
            "must be a whole number, option=`--workers`, value=`two`",
        ),
        (("query", "--limit", "4.5"), "must be a whole number, option=`--limit`, value=`4.5`"),
        (
            ("gaps", "web-1"),
            "values belong to options, which `sluice gaps --help` lists, argument=`web-1`",
        ),
        (("query", "-q", "a", "-q", "b"), "option given twice: give it once, option=`-q`"),
        (
            ("--json", "status"),
            "an option precedes the command: write it after it, as in `sluice status --json`,",
        ),
        (
            ("version",),
            "unknown command: did you mean `sluice --version`? `sluice --help` lists all,",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    done = sluice(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sluice: ")
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr


@pytest.mark.parametrize(
    ("variable", "arguments", "nearest"),
    [
        ("SLUICE_GATEWAY_LISTN", ("gateway",), "SLUICE_GATEWAY_LISTEN"),
        ("SLUICE_GATEWAY_LISTN", ("config", "show"), "SLUICE_GATEWAY_LISTEN"),
        ("SLUICE_AGENT_RUN_ONCEE", ("agent", "run"), "SLUICE_AGENT_RUN_ONCE"),
        ("SLUICE_STOER", ("query",), "SLUICE_STORE"),
        ("SLUICE_GATWAY_LISTEN", ("query",), "SLUICE_GATEWAY_"),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest_one(
    tmp_path: Path, variable: str, arguments: tuple[str, ...], nearest: str
) -> None:
    done = sluice(*arguments, **{variable: "1"}, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"the nearest known name is {nearest}" in done.stderr
    assert variable in done.stderr


def test_variables_of_other_commands_are_not_checked(tmp_path: Path) -> None:
    """A machine that runs several commands has variables for each of them."""
    assert sluice("init", SLUICE_GATEWAY_LISTEN="127.0.0.1:1", folder=tmp_path).returncode == 0


def test_variables_of_other_clients_are_ignored(tmp_path: Path) -> None:
    """The pages in `docs/send` export them in the shell of an operator."""
    done = sluice("init", SLUICE_TOKEN="slt_x", SLUICE_URL="http://127.0.0.1:1", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_variables_that_kubernetes_sets_for_a_service_are_ignored(tmp_path: Path) -> None:
    """A service named `sluice-init` sets these in every pod."""
    variables = {
        "SLUICE_INIT_SERVICE_HOST": "10.0.0.1",
        "SLUICE_INIT_SERVICE_PORT_HTTP": "80",
        "SLUICE_INIT_PORT": "tcp://10.0.0.1:80",
        "SLUICE_WEB_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    done = sluice("init", **variables, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["query", "reconciler", "gateway"])
def test_a_mistyped_option_is_reported_before_a_missing_store(tmp_path: Path, command: str) -> None:
    done = sluice(command, "--store", f"file://{tmp_path}/gone", "--jsno", folder=tmp_path)
    assert done.returncode == 2
    assert "--jsno" in done.stdout + done.stderr
    assert "no store" not in done.stdout + done.stderr
    gone = sluice(command, "--store", f"file://{tmp_path}/gone", folder=tmp_path)
    assert gone.returncode == 2
    problem = "no store here; change to its folder, pass `--store`, or create one with"
    assert gone.stderr.startswith(f"sluice: {problem} `sluice init --store file://")
    assert not (tmp_path / "gone").exists()


def test_a_mistyped_command_is_one_line(tmp_path: Path) -> None:
    done = sluice("gatway", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "sluice: unknown command: did you mean `sluice gateway`?"
        " `sluice --help` lists all, command=`gatway`\n"
    )


def test_help_lists_every_command(tmp_path: Path) -> None:
    """`sluice --help` names the commands without importing them."""
    done = sluice("--help", folder=tmp_path)
    assert done.returncode == 0
    assert sluice("help", folder=tmp_path) == done
    for command in ("gateway", "reconciler", "agent", "query", "policies", "gc"):
        assert command in done.stdout


def test_a_table_of_options_is_read_and_shown(tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text(
        "[maintain]\nstop_grace_s = 2\n[maintain.gc]\ngrace_s = 60\n[maintain.every_s]\ngc = 90\n"
    )
    done = sluice(
        *("config", "show", "maintain", "--json"),
        folder=tmp_path,
        SLUICE_MAINTAIN_COMPACT_CHUNK_DAYS="77",
    )
    assert done.returncode == 0, done.stderr
    found = {one["option"]: (one["value"], one["origin"]) for one in json.loads(done.stdout)}
    assert found["--stop-grace-s"] == ("2", "sluice.toml")
    assert found["--gc.grace-s"] == ("60", "sluice.toml")
    assert found["--every-s"] == ("gc=90", "sluice.toml")
    assert found["--compact.chunk-days"] == ("77", "SLUICE_MAINTAIN_COMPACT_CHUNK_DAYS")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[maintain.compcat]\nevery_s = 5\n", "compcat"),
        ("[maintain.compact]\nchunk_dys = 5\n", "maintain.compact.chunk_days"),
        ("[maintain.every_s]\ncompcat = 5\n", "one of ingest, rollup, compact,"),
        (
            '[maintain.every_s]\ncompact = "1 day"\n',
            "did you mean 86400? key=`maintain.every_s.compact`, value=`1 day`, path=",
        ),
        ('[maintain.window]\ncompact = "10pm"\n', "[maintain.window], window must be HH:MM"),
        ("[maintain]\nevery_s = 5\n", "set one of them, `--every-s.NAME`"),
        ("[maintain.every_s]\ngc = 0\n", "[maintain.every_s], gc must be at least 1"),
        ("[maintain]\ncompact = 5\n", "set one of them, `--compact.NAME`"),
    ],
)
def test_a_wrong_policy_is_bad_usage_and_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "sluice.toml").write_text(text)
    (tmp_path / ".sluice").mkdir()
    done = sluice("maintain", "--dry-run", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr
