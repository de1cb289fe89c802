"""What `--help` shows of the tree of commands, and what a word that is no command may have meant.

The texts of the commands are wrapped for the source and have brackets in them. Rich would keep those line breaks, and
take `[pipeline]` for its markup; and it would name types of Python beside flags and arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from epochlake.placement.near_names import nearest

MEANT = {
    "alter": ("set",),
    "check": ("verify", "validate", "status"),
    "count": ("query",),
    "delete": ("drop", "remove"),
    "describe": ("show",),
    "drop": ("remove", "decommission", "cancel"),
    "export": ("table export",),
    "get": ("show",),
    "import": ("load",),
    "info": ("show", "status"),
    "insert": ("load",),
    "join": ("add",),
    "leave": ("decommission",),
    "ls": ("list",),
    "new": ("create", "add"),
    "rename": ("alter",),
    "remove": ("drop", "decommission"),
    "rm": ("drop", "remove"),
    "scan": ("query",),
    "select": ("query",),
    "start": ("run",),
    "sql": ("query",),
    "verify": ("log verify",),
    "write": ("load",),
}
"""Words that people know from other programs, and the commands here that do this, the likeliest first."""


def shown(command: Any) -> Any:
    """The tree of commands with texts as Rich is to show them. It changes the tree that it gets."""
    command.help = _escaped(_unwrapped(command.help or ""))
    for parameter in command.params:
        parameter.help = _escaped(parameter.help or "")
        if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
            parameter.display_type_rich = _no_type
    command.get_help_option = partial(_help_option, command.get_help_option)
    for inner in getattr(command, "commands", {}).values():
        shown(inner)
    return command


def meant(word: str, commands: Any) -> str | None:
    """The one of these commands that a word which is none of them probably means; None where there is none like it."""
    words = [one.partition(" ")[0] for one in MEANT.get(word.lower(), ())]
    found = [one for one, first in zip(MEANT.get(word.lower(), ()), words, strict=True) if first in commands]
    return found[0] if found else nearest(word, commands)


def _unwrapped(text: str) -> str:
    """Paragraphs, each in one line: the terminal is as wide as it is."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


def _help_option(made: Callable[[Any], Any], ctx: Any) -> Any:
    option = made(ctx)
    if option is not None:
        option.display_type_rich = _no_type
    return option


def _no_type(ctx: object) -> None:
    """An argument's name says what it takes, and a flag takes nothing."""
