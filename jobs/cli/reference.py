"""`docs/cli.md`, made from the commands and the documents themselves: `python -m epochlake.jobs.cli.reference`.

What is written there is what the program does: a test compares the two. Whoever changes a key of a document or an
option sees it there, and so does the review.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import typer
from epochlake.jobs.administration.adopting import Adopted
from epochlake.jobs.administration.checks import ChecksFound
from epochlake.jobs.administration.past_rows import RolledBack
from epochlake.jobs.administration.unused_files import Sweep
from epochlake.jobs.agent.documents import AgentState, NodeSeen
from epochlake.jobs.agent.initialising import InitAnswer
from epochlake.jobs.agent.joining import JoinState
from epochlake.jobs.cli import documents as d
from epochlake.jobs.cli.app import app
from epochlake.jobs.cli.changing import How
from epochlake.jobs.coordinator.coordinator import CoordinatorReport
from epochlake.jobs.exchange.exporting import Exported
from epochlake.jobs.upkeep.change_streams import StreamUpkeep
from epochlake.jobs.upkeep.compaction import CompactionReport
from epochlake.jobs.upkeep.coordination_members import CoordinationMembers, CoordinationProposed
from epochlake.jobs.upkeep.log_members import LogMembers, MembersProposed, RootRestored
from epochlake.jobs.upkeep.lost_epochs import AcceptedLoss
from epochlake.jobs.upkeep.repair import RepairReport
from epochlake.jobs.views.balancing import BalancePlan
from epochlake.jobs.views.change_generations import GenerationStatus
from epochlake.jobs.views.change_streams import StreamStatus
from epochlake.jobs.views.explanation import Explanation
from epochlake.jobs.views.features import FeatureRow
from epochlake.jobs.views.history import Differences, LogRow
from epochlake.jobs.views.nodes import NodeShown
from epochlake.jobs.views.requests import RequestRow
from epochlake.jobs.views.resizing import ResizePlan
from epochlake.jobs.views.schema import KeyspaceRow, TableRow, TableShown
from epochlake.jobs.views.status import NodeStatus, Status
from epochlake.jobs.views.upgrade import UpgradeStatus

CHANGE = "change"

DOCUMENTS: dict[str, Any] = {
    "init": CHANGE,
    "status": Status,
    "node add": CHANGE,
    "node list": list[NodeStatus],
    "node show": NodeShown,
    "node move": CHANGE,
    "node decommission": CHANGE,
    "node remove": CHANGE,
    "node replace": CHANGE,
    "node rebuild": CHANGE,
    "node cancel": CHANGE,
    "node maintenance": CHANGE,
    "node set": CHANGE,
    "request list": list[RequestRow],
    "request pause": CHANGE,
    "request resume": CHANGE,
    "request cancel": CHANGE,
    "feature list": list[FeatureRow],
    "feature enable": CHANGE,
    "upgrade describe": UpgradeStatus,
    "upgrade start": UpgradeStatus,
    "upgrade status": UpgradeStatus,
    "upgrade give-up": CHANGE,
    "keyspace create": CHANGE,
    "keyspace alter": CHANGE,
    "keyspace list": list[KeyspaceRow],
    "keyspace drop": CHANGE,
    "keyspace rename": CHANGE,
    "table create": CHANGE,
    "table adopt": Adopted,
    "table export": Exported,
    "table alter": CHANGE,
    "table validate": ChecksFound,
    "table list": list[TableRow],
    "table show": TableShown,
    "table drop": CHANGE,
    "table restore": CHANGE,
    "table history": CHANGE,
    "table diff": None,
    "table rollback": RolledBack,
    "coordinator run": CoordinatorReport,
    "log list": list[LogRow],
    "log show": d.LogEntry,
    "log diff": Differences,
    "log verify": d.Verified,
    "log compact": d.Compacted,
    "log heal": d.Healed,
    "log accept-loss": AcceptedLoss,
    "log snapshot": CHANGE,
    "metadata describe": LogMembers,
    "metadata reconfigure": LogMembers | MembersProposed,
    "metadata prepare-server": d.PreparedServer,
    "metadata recover": RootRestored,
    "metadata snapshot": CHANGE,
    "metadata unregister": CHANGE,
    "placement show": d.PlacementShown,
    "placement explain": Explanation,
    "placement simulate": None,
    "plan balance": BalancePlan,
    "plan resize": ResizePlan,
    "balance pause": CHANGE,
    "balance resume": CHANGE,
    "changes pause": CHANGE,
    "changes resume": CHANGE,
    "changes keep": CHANGE,
    "changes drop": CHANGE,
    "changes read": None,
    "changes streams": list[StreamStatus],
    "changes generations": list[GenerationStatus],
    "changes check-and-repair": CHANGE,
    "changes keep-up": StreamUpkeep,
    "changes forget": None,
    "pipeline list": list[d.PipelineRow],
    "load": d.Loaded,
    "query": None,
    "repair": RepairReport,
    "compact": CompactionReport,
    "vacuum": Sweep,
    "tablet move": CHANGE,
    "tablet add-replica": CHANGE,
    "tablet drop-replica": CHANGE,
    "tablet pin": CHANGE,
    "tablet unpin": CHANGE,
    "agent run": None,
    "agent show": AgentState,
    "agent nodes": list[NodeSeen],
    "agent init": InitAnswer,
    "agent cancel-join": JoinState,
    "config show": list[d.ConfigurationRow],
    "config reference": list[d.ConfigurationRow],
    "demo": None,
}
"""What each command prints with `--output json`; None: what its own help says."""

OF_COORDINATION: dict[str, Any] = {
    "metadata describe": CoordinationMembers,
    "metadata reconfigure": CoordinationMembers | CoordinationProposed,
}
"""What these print with --coordination."""

_HEAD = """# The command line

Every command with its options, and the documents that `--output json` prints, with their keys. (Written by
`python -m epochlake.jobs.cli.reference`.)

    epochlake [--conf FILE] [--root URI] [--output text|json] [--verbose] COMMAND …
    epochlake --version

The global options may stand anywhere. Data goes to stdout; messages, logs and progress bars go to stderr, bars only on
a terminal. An error is one line, and a second one that begins with `hint:` where something can be done about it. With
`--output json` an error is a document too ([ErrorDocument](#errordocument)), on stderr. Tokens are 64-bit whole
numbers: read them as such.

| exit code | |
|---|---|
| 0 | done, or done already under this request id |
| 1 | failed |
| 2 | usage: the command, the configuration, or a value that cannot be meant |
| 3 | rejected by the metadata; nothing was changed. Of a what-if: an operation would be |
| 4 | something does not hold that always must |
| 75 | worth retrying: a timeout, storage or ZooKeeper away, an outcome that is unknown (same request id!) |
| 130 | interrupted; the message says whether anything was committed |

Every job can also be run by `spark-submit` (`jobs/run_coordinator.py`, `verify_log.py`, `compact_log.py`,
`take_snapshot.py`, `vacuum_replicas.py`, `repair.py`, `compaction.py`: the options of their commands) and as a wheel
task (`epochlake.jobs.wheel_tasks`, where another exit code than 0 is an exception).
"""


def reference() -> str:
    """The text of `docs/cli.md`."""
    commands = dict(walk())
    common = [option for option in _options(commands["node add"]) if option.name in How.__struct_fields__]
    lines = [_HEAD, "## Options of every change", "", *_table(common), "## Commands", ""]
    for name, command in commands.items():
        lines += [f"### {name}", "", (command.help or "").replace("\n\n", "\n").strip(), ""]
        lines += _usage(name, command)
        lines += [f"Prints: {_prints(DOCUMENTS[name])}", ""]
        if name in OF_COORDINATION:
            lines += [f"With `--coordination`: {_prints(OF_COORDINATION[name])}", ""]
    lines += ["## Documents", "", "The keys of JSON output, stable: they are added to, never renamed.", ""]
    for kind in _structs():
        lines += _described(kind)
    return "\n".join(lines).rstrip() + "\n"


def walk() -> Iterator[tuple[str, Any]]:
    """Every command with its words, in the order of the help."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {word}", leaf) for word, leaf in inner.items())


def _usage(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = _options(command)
    words = " ".join([name, *(argument.metavar or argument.name.upper() for argument in arguments)])
    lines = [f"    epochlake {words}", ""]
    changes = {"dry_run", "expect_epoch"} <= {option.name for option in options}
    own = [option for option in options if not (changes and option.name in How.__struct_fields__)]
    lines += _table(own)
    return [*lines, "And the [options of every change](#options-of-every-change).", ""] if changes else lines


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]


def _table(options: list[Any]) -> list[str]:
    rows = []
    for option in options:
        names = ", ".join(f"`{word}`" for word in option.opts)
        value = "" if option.is_flag else f" `{option.metavar or option.name.upper()}`"
        needed = " Required." if option.required else ""
        rows.append(f"| {names}{value} | {(option.help or '').replace('|', chr(92) + '|')}{needed} |")
    return ["| option | |", "|---|---|", *rows, ""] if rows else []


def _prints(kind: Any) -> str:
    if kind is None:
        return "what its help says."
    if kind == CHANGE:
        return f"{_link(d.Changed)}, with `--dry-run` {_link(d.Planned)}."
    if get_origin(kind) is types.UnionType:
        done, planned = get_args(kind)
        return f"{_link(done)}, with `--dry-run` {_link(planned)}."
    if get_origin(kind) is list:
        return f"a list of {_link(get_args(kind)[0])}."
    return f"{_link(kind)}."


def _link(kind: type) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _structs() -> list[type[msgspec.Struct]]:
    """All structs that documents are made of, each once, outer ones first."""
    found: dict[type[msgspec.Struct], None] = {}
    waiting: list[Any] = [d.Changed, d.Planned, *DOCUMENTS.values(), *OF_COORDINATION.values(), d.ErrorDocument]
    while waiting:
        kind = waiting.pop(0)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind not in found:
                found[kind] = None
                waiting += get_type_hints(kind).values()
        else:
            waiting += get_args(kind)
    return list(found)


def _described(kind: type[msgspec.Struct]) -> list[str]:
    doc = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    rows = [f"| `{name}` | {_type(hint)} |" for name, hint in get_type_hints(kind).items()]
    return [f"### {kind.__name__}", "", doc, "", "| key | value |", "|---|---|", *rows, ""]


def _type(hint: Any) -> str:
    """A type in the words of JSON."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if one is type(None) else _type(one) for one in arguments)
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object: {_type(arguments[0])} → {_type(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _link(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(f"`{one}`" for one in hint)
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(hint, "any")


if __name__ == "__main__":
    print(reference(), end="")
