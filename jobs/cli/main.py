"""The command line: `main` for whoever has arguments and wants the exit code; the shell's entry is in `entry.py`.

Every end is one of the exit codes of the design's section 13. An error is one line on stderr, and a second one that
begins with `hint:` where something can be done about it. `main` never ends the process: in a notebook or a wheel task
that would be a failure by itself.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from epochlake.jobs.cli.interruption import Interrupted, begin, so_far
from epochlake.metastore.errors import CommitUnknown, Rejected
from epochlake.placement.errors import EpochlakeError, sentences

if TYPE_CHECKING:
    from epochlake.jobs.cli.documents import ErrorBody

PROGRAM = "epochlake"
INTERRUPTED = 130
USAGE = 2

REPORT = "Run it again with --verbose, and report what it prints"

_NO_COMMAND = re.compile(r"No such command '([^']*)'\.")

GLOBAL_FLAGS = frozenset({"--verbose", "-v"})
GLOBAL_VALUES = frozenset({"--conf", "--root", "--output", "-o"})
TAKES_OWN_OPTIONS = "demo"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: that of the process) and return its exit code."""
    arguments = globals_first(sys.argv[1:] if argv is None else list(argv))
    as_json = _wants_json(arguments)
    verbose = bool(GLOBAL_FLAGS & set(arguments))
    begin()
    try:
        return _run(arguments, as_json)
    except EpochlakeError as error:
        _tell(error, error.exit_code, as_json, verbose)
        return error.exit_code
    except KeyboardInterrupt as error:
        _tell_interrupted(error, as_json)
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    except Exception as error:
        told = _without_spark(error) or _without_utf8(error) or error
        _tell(told, EpochlakeError.exit_code, as_json, verbose)
        return EpochlakeError.exit_code


def _without_utf8(error: Exception) -> EpochlakeError | None:
    """What to tell of a text with half a character, as which the bytes of a name come that is no UTF-8."""
    if not isinstance(error, UnicodeEncodeError) or not "\ud800" <= error.object[error.start] <= "\udfff":
        return None
    return EpochlakeError(
        f"{error.object!a} is no text in UTF-8",
        hint="If it is the name of a file or a directory, rename that; or give another one",
    )


def _without_spark(error: Exception) -> EpochlakeError | None:
    """What to tell of a package that an installation need not have."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
        return None
    return EpochlakeError(
        "this needs PySpark, which is not installed here", hint="Run `pip install 'epochlake[spark]'`"
    )


def _run(arguments: Sequence[str], as_json: bool) -> int:
    import typer

    # In whatever version: typer brings click's errors along, or has its own copy of them.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    # What is no UTF-8 comes from the shell as half characters.
    unreadable = [argument for argument in arguments if any("\ud800" <= char <= "\udfff" for char in argument)]
    if unreadable:
        _tell_usage(typer.BadParameter(f"{unreadable[0]!a} is no text in UTF-8"), as_json)
        return USAGE
    try:
        # Not the command's own `main`: that prints and wraps a KeyboardInterrupt.
        with _command().make_context(PROGRAM, list(arguments)) as context:
            context.command.invoke(context)
        return 0
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except usage_error as error:
        _tell_usage(error, as_json)
        return USAGE


@cache
def _command() -> Any:
    """The tree of commands. Making it takes longer than most commands do."""
    import typer
    from epochlake.jobs.cli.app import app
    from epochlake.jobs.cli.helping import shown

    return shown(typer.main.get_command(app))


def globals_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global options in front, wherever they were given."""
    front: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        name, equals, _ = word.partition("=")
        if word in ("--", TAKES_OWN_OPTIONS) and (word == "--" or not rest):
            rest += arguments[position:]
            break
        if word in GLOBAL_FLAGS or (name in GLOBAL_VALUES and equals):
            front.append(word)
        elif word in GLOBAL_VALUES and position + 1 < len(arguments):
            front += arguments[position : position + 2]
            position += 1
        else:
            rest.append(word)
        position += 1
    return front + rest


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be documents; asked before the arguments are understood, as that may be what fails."""
    pairs = zip(arguments, [*arguments, ""][1:], strict=True)
    return any(
        word in ("--output=json", "-o=json") or (word in ("--output", "-o") and following == "json")
        for word, following in pairs
    )


def _tell(error: Exception, exit_code: int, as_json: bool, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, EpochlakeError):
        statement, hint = _one_line(error.statement), _one_line(error.hint)
    else:
        statement, hint = f"{type(error).__name__}: {_one_line(str(error))} (unexpected)", REPORT
    statement = statement or type(error).__name__
    if as_json:
        from epochlake.jobs.cli.documents import ErrorBody

        body = ErrorBody(
            type=type(error).__name__,
            message=sentences(statement, hint),
            exit_code=exit_code,
            code=error.code if isinstance(error, Rejected) else None,
            request_id=error.request_id if isinstance(error, CommitUnknown) else None,
            hint=hint or None,
        )
        _print_json(body)
    else:
        _print_lines(statement, hint)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_lines(statement: str, hint: str) -> None:
    print(f"{PROGRAM}: {statement}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _tell_interrupted(error: KeyboardInterrupt, as_json: bool) -> None:
    told = error if isinstance(error, Interrupted) else so_far()
    message = told.said
    if not as_json:
        print(f"{PROGRAM}: {message}", file=sys.stderr)
        return
    from epochlake.jobs.cli.documents import ErrorBody

    _print_json(ErrorBody("Interrupted", message, INTERRUPTED, request_id=told.request_id))


def _tell_usage(error: Exception, as_json: bool) -> None:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    message = _one_line(text) or "A command is missing."  # then the help has been printed already
    message += "" if message.endswith((".", "?", "!")) else "."
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    hint = f"See `{path} --help`"
    commands = getattr(context.command, "commands", None) if context is not None else None
    if commands and (word := _NO_COMMAND.match(message)):
        from epochlake.jobs.cli.helping import meant

        message, near = word[0], meant(word[1], commands)
        hint = f"Did you mean `{path} {near}`? {hint}" if near else f"{hint}: {', '.join(commands)}"
    if as_json:
        from epochlake.jobs.cli.documents import ErrorBody

        _print_json(ErrorBody("UsageError", message, USAGE, hint=hint))
    else:
        _print_lines(message, hint)


def _print_json(body: ErrorBody) -> None:
    from epochlake.jobs.cli.documents import ErrorDocument
    from epochlake.jobs.cli.session import as_json

    print(as_json(ErrorDocument(body)), file=sys.stderr)
