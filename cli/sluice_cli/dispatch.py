"""Run one command line, and turn errors into exit codes."""

from sluice_cli.extras import describe_missing
from sluice_cli.logs import configure_logs
from sluice_cli.output import describe_error, describe_os_error, fail
from sluice_cli.settings_file import refuse_unknown_command
from sluice_protocol.errors import BadUsage, ExitCode, SluiceError


def run_command(tokens: list[str]) -> int:
    """Run one command line that names a command.

    Returns:
        The exit code: 0 done, 1 a problem was found, 2 bad usage, 3 the store is unreachable.

    Raises:
        ImportError: A module is missing that belongs to no extra.
        BrokenPipeError: The reader of the output has ended.
    """
    configure_logs()
    try:
        return _run(tokens)
    except SluiceError as error:
        fail(describe_error(error))
        return error.exit_code.value
    except BrokenPipeError:
        raise
    except OSError as error:  # a file of this machine; those of a store are errors of sluice
        fail(describe_os_error(error))
        return ExitCode.BAD_USAGE.value
    except ImportError as error:
        message = describe_missing(error, tokens[0])
        if message is None:
            raise
        fail(message)
        return ExitCode.BAD_USAGE.value
    except KeyboardInterrupt:
        return 130


def _run(tokens: list[str]) -> int:
    if not tokens[0].startswith("-"):
        refuse_unknown_command(tokens[0])
    elif tokens[0] != "--version":
        raise BadUsage(
            "an option precedes the command: write it after it, as in `sluice status --json`,"
            f" option=`{tokens[0]}`"
        )
    if tokens[:2] == ["agent", "run"]:
        from sluice_cli.agent_run import run_plain  # noqa: PLC0415 - only for this command

        code = run_plain(tokens[2:])
        if code is not None:
            return code
    from sluice_cli.application import run_parsed  # noqa: PLC0415 - imports the library

    return run_parsed(tokens)
