"""Errors of the command-line library as one line: what is wrong, where, and what to write."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, Literal, get_args, get_origin

from cyclopts import (
    Argument,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from sluice_cli.query_instead import describe_query_option
from sluice_cli.shell.settings import describe_unknown_option, nearest
from sluice_protocol.errors import BadUsage

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-zµ]+)", re.ASCII)
_SECONDS: Final = {
    **dict.fromkeys(("ms", "msec", "millis"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_WORD_CHARS_MAX: Final = 80


def usage_error(error: CycloptsError) -> BadUsage:
    """Return an error of the library as one line."""
    error.verbose = False
    place = " ".join(("sluice", *(error.command_chain or ())))
    return BadUsage(_describe(error, place) or _describe_as_library(error))


def _describe_as_library(error: CycloptsError) -> str:
    text = " ".join(str(error).split()).removesuffix(".")
    return text[:1].lower() + text[1:]


def _describe(error: CycloptsError, place: str) -> str:
    """Return the message of an error, or an empty text where the library knows better."""
    text = ""
    match error:
        case UnusedCliTokensError():
            text = _describe_unexpected(error, place)
        case UnknownCommandError():
            text = _describe_unknown_command(error, place)
        case UnknownOptionError() if error.token.source in {"", "cli"}:
            option = (error.token.keyword or error.token.value).partition("=")[0]
            known = list(_options_of(error.argument_collection or ()))
            if place == "sluice query":
                text = describe_query_option(option, _value_of(error, option))
            text = text or describe_unknown_option(option, known, place)
        case RepeatArgumentError():
            text = f"option given twice: give it once, option=`{error.token.keyword}`"
        case MissingArgumentError(argument=Argument() as argument) if (
            type(error) is MissingArgumentError
        ):
            name = error.keyword or argument.name
            text = _describe_missing(name, error.root_input_tokens or [], place)
        case CoercionError() if error.msg is None:
            text = _describe_value(error)
        case _:
            pass
    return text


def _describe_unexpected(error: UnusedCliTokensError, place: str) -> str:
    word = (error.unused_tokens or [""])[0]
    shown = f"argument=`{word[:_WORD_CHARS_MAX]}`"
    below = _subcommands(error)
    near = nearest(word, below, similarity_min=0.6) if below else ""
    if near:
        return f"unknown command: did you mean `{place} {near}`? {_listed(place)}, {shown}"
    before = _option_before(error, word)
    if before:
        return (
            f"unexpected argument: repeat `{before}` for each value, and quote a pattern so that"
            f" the shell does not expand it, {shown}"
        )
    if place == "sluice query":
        return (
            "unexpected argument: quote LogQL as one word, as in"
            " `sluice query '{level=\"error\"}'`; a text to search is `-q TEXT`;"
            f" {_listed(place)}, {shown}"
        )
    if place == "sluice explain":
        return f"unexpected argument: write a batch as one word, agent/boot/start-end, {shown}"
    return f"unexpected argument: values belong to options, which `{place} --help` lists, {shown}"


def _value_of(error: UnknownOptionError, option: str) -> str:
    """Return the word after an option, or what follows its `=`; empty without one."""
    words = error.root_input_tokens or []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else next(iter(words[place + 1 : place + 2]), "")
    return ""


def _listed(place: str) -> str:
    return f"`{place} --help` lists all"


def _describe_unknown_command(error: UnknownCommandError, place: str) -> str:
    word = (error.unused_tokens or [""])[0]
    below = _subcommands(error)
    if word.startswith("-"):
        return (
            f"missing command: write `{place} {below[0]}`, or another one that `{place} --help`"
            f" lists, option=`{word}`"
        )
    near = nearest(word, below, similarity_min=0.6)
    hint = f"did you mean `{place} {near}`? " if near else f"use one of {', '.join(below)}; "
    return f"unknown command: {hint}{_listed(place)}, command=`{word[:_WORD_CHARS_MAX]}`"


def _describe_missing(name: str, words: list[str], place: str) -> str:
    if name in words:
        after = words[words.index(name) + 1 :][:1]
        if after and after[0].startswith("-"):
            return (
                f"missing value: one that begins with `-` follows `=`, as in"
                f" `{name}={after[0][:_WORD_CHARS_MAX]}`, option=`{name}`"
            )
        return f"missing value: write it after the option, option=`{name}`"
    written = f"`{name}`" if name.startswith("-") else name
    near = nearest(name, [one for one in words if one.startswith("--")], similarity_min=0.6)
    if near:
        return f"missing option: did you mean {written} instead of `{near}`? {_listed(place)}"
    kind = "option" if name.startswith("-") else "argument"
    return f"missing {kind}: add {written}, which `{place} --help` explains"


def _describe_value(error: CoercionError) -> str:
    """Return what an option accepts, and its value in the option's unit if the value has another.

    Empty where the library knows better.
    """
    token, argument = error.token, error.argument
    if token is None or argument is None or error.target_type is None:
        return ""
    option = token.keyword or argument.name
    value = f"value=`{token.value[:_WORD_CHARS_MAX]}`"
    if token.source in {"", "cli"}:
        shown = f"option=`{option}`, {value}"
    elif token.source == "env":
        shown = f"variable=`{option}`, {value}"
    else:
        keys = option.strip("[]").replace("][", ".").removeprefix("--").replace("-", "_")
        shown = (
            f"key=`{'.'.join((*(error.command_chain or ()), keys))}`, {value},"
            f" path=`{token.source}`"
        )
    choices = _choices_of(error.target_type)
    if choices:
        return _describe_choice(token.value, choices, argument, option) + shown
    if error.target_type not in {int, float}:
        return ""
    what = "a whole number" if error.target_type is int else "a number"
    unit = _unit_of(argument.name)
    number = _converted(token.value, unit)
    hint = f": did you mean {number}?" if number else ""
    return f"must be {what}{f' of {unit}' if unit else ''}{hint or ','} {shown}"


def _describe_choice(value: str, choices: tuple[str, ...], argument: Argument, option: str) -> str:
    parts = [one.strip() for one in value.split(",")]
    if len(parts) > 1 and argument.token_count()[1] and set(parts) <= set(choices):
        written = " ".join(f"{option} {one}" for one in parts)
        return f"must be one value: repeat the option, as in `{written}`, "
    near = nearest(value, choices, similarity_min=0.7)
    hint = f": did you mean {near}? There are {', '.join(choices)}" if near else ""
    return f"unknown value{hint or ': use one of ' + ', '.join(choices)}, "


def _choices_of(kind: object) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return tuple(str(one) for one in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(one.value) for one in kind)
    return ()


def _unit_of(option: str) -> str:
    """Return the unit that the end of an option's name states; empty for none."""
    words = option.rpartition(".")[2].split("-")
    if "bytes" in words:
        return "bytes"
    last = [one for one in words if one not in {"max", "min"}][-1:]
    return {"s": "seconds", "ms": "milliseconds"}.get(last[0] if last else "", "")


def _converted(text: str, unit: str) -> str:
    """Return a quantity such as `7d`, `16MiB` or `10k` as the number in a unit; else empty."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        return ""
    amount, suffix = float(found[1]), found[2].lower()
    if unit in {"seconds", "milliseconds"}:
        seconds = _SECONDS.get(suffix)
        scale = None if seconds is None else seconds * (1000 if unit == "milliseconds" else 1)
    else:
        power = _POWERS.get(suffix[:1])
        known = suffix[1:] in ({"", "b", "ib"} if unit == "bytes" else {""})
        base = 1024 if unit == "bytes" else 1000
        scale = float(base**power) if power is not None and known else None
    return "" if scale is None else f"{amount * scale:.6f}".rstrip("0").rstrip(".")


def _subcommands(error: CycloptsError) -> tuple[str, ...]:
    return () if error.app is None else tuple(one for one in error.app if one[0] != "-")


def _option_before(error: UnusedCliTokensError, word: str) -> str:
    """Return the repeated option whose values a word follows, or empty."""
    words = error.root_input_tokens or []
    if word not in words:
        return ""
    before = [one for one in words[: words.index(word)] if one.startswith("-")][-1:]
    if not before or error.app is None or error.app.default_command is None:
        return ""
    for argument in error.app.assemble_argument_collection(parse_docstring=False):
        if before[0] in argument.names and argument.token_count()[1]:
            return before[0]
    return ""


def _options_of(arguments: Iterable[Argument]) -> Iterator[str]:
    for argument in arguments:
        if argument.parse:
            yield from (name for name in argument.names if name.startswith("-"))
