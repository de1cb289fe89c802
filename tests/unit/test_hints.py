"""Errors carry their hint apart from their reason, wherever they go; and what a hint names is there."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import epochlake
import pytest
from epochlake.jobs.cli.reference import walk
from epochlake.jobs.gate.change_recording import ChangeNotKept
from epochlake.jobs.gate.errors import (
    ConsistencyNotReached,
    HistoryNotKept,
    MergeContended,
    MergeUnfinished,
    NamedRanges,
    ReadDisturbed,
    RowsUnreadable,
    StagedBefore,
    TableAltered,
)
from epochlake.jobs.replicas.change_index import ChangesGone
from epochlake.jobs.replicas.change_reading import ChangesDamaged
from epochlake.jobs.replicas.sealing import DamagedBytes
from epochlake.jobs.wheel_tasks import JobFailed
from epochlake.metastore.delta_commits import TornCommit
from epochlake.metastore.errors import CommitUnknown, LogWentBack, Rejected
from epochlake.metastore.log.files import LogFile
from epochlake.metastore.log.holes import Unfillable
from epochlake.metastore.log.restoring import Damaged, Lost
from epochlake.metastore.metadata.events.base import require
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import EpochlakeError, sentences
from epochlake.placement.rejections import Code
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.simulation.histories import QuorumsDisjoint
from epochlake.placement.simulation.placements import SimulationFailure, SimulationSettings
from pyspark import cloudpickle

ROOT = Path(__file__).parents[2]
CODE = [path for folder in ("placement", "metastore", "jobs") for path in sorted((ROOT / folder).rglob("*.py"))]
COMMAND = re.compile(r"`epochlake ([^`]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FIELD = "…"
"""What stands for a value in the text of a hint."""

OWN_ARGUMENTS: list[EpochlakeError] = [
    Rejected(Code.UNKNOWN_NODE, "no node", hint="Add it"),
    PlanRejected(Code.NODE_BUSY, "busy", "join-1", hint="Wait for it"),
    CommitUnknown("r-1", "nobody answers"),
    LogWentBack(3, 5, "ab" * 32, "this process"),
    Unfillable("log", TornCommit("log", 4, "is empty"), 3, 9, "no entry comes after it"),
    Lost("log", [Damaged(LogFile("a.parquet", 9, 3, 1, 3), "it is torn")], 0, 3, "no other file holds them"),
    ConsistencyNotReached("the write", "QUORUM", 7, NamedRanges("tablet", (1,), ("2-1",)), {"n1/d1": "away"}),
    RowsUnreadable("air.flights", {"n1/d1: a.parquet": "torn"}, {"n2/d1": "away"}),
    ReadDisturbed("air.flights", {"n1/d1: a.parquet": "torn"}),
    TableAltered("air.flights", 7),
    MergeContended("air.flights", 10),
    MergeUnfinished("air.flights", "2013-01", "n1/d1: away"),
    StagedBefore("air.flights", [Column("size", "int")], 9, []),
    HistoryNotKept("air.flights", 1_000_000, 2_000_000, {"n2/d1": "away"}),
    ChangeNotKept("air.flights", EpochlakeError("the root is full")),
    ChangesGone("changes up to position 7 are gone", 7),
    DamagedBytes("disks/n1/a.parquet", "it is torn"),
    ChangesDamaged("air.flights", 7, "changes/a.parquet", "it is torn"),
    TornCommit("log", 4, "is empty"),
    JobFailed("vacuum", 75),
    QuorumsDisjoint(7, 3, "no replica in common"),
    SimulationFailure(SimulationSettings(1, 3, 0), 7, 3, "a range has two replicas"),
]
"""An error of each class that is not made of a reason and a hint."""


def modules() -> Iterator[str]:
    for path in CODE:
        # Airflow is not installed here, and its provider has no errors of its own.
        if path.name != "__main__.py" and "airflow_provider" not in path.parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(("epochlake", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def error_classes() -> tuple[type[EpochlakeError], ...]:
    for module in modules():
        importlib.import_module(module)

    def below(kind: type[EpochlakeError]) -> Iterator[type[EpochlakeError]]:
        for inner in kind.__subclasses__():
            yield inner
            yield from below(inner)

    found = [EpochlakeError, *below(EpochlakeError)]
    return tuple(kind for kind in dict.fromkeys(found) if kind.__module__.startswith(f"{epochlake.__name__}."))


def examples() -> list[EpochlakeError]:
    own = {type(error) for error in OWN_ARGUMENTS}
    others = [kind for kind in error_classes() if kind not in own]
    return [*OWN_ARGUMENTS, *(kind("it is not there", hint="Look again") for kind in others)]


# Reason and hint


def test_an_error_says_its_reason_and_then_its_hint() -> None:
    error = EpochlakeError("there is no cluster yet", hint="Run `epochlake init` first")
    assert (error.reason, error.hint) == ("there is no cluster yet", "Run `epochlake init` first")
    assert str(error) == "there is no cluster yet. Run `epochlake init` first"
    assert str(EpochlakeError("there is no cluster yet")) == "there is no cluster yet"
    assert sentences("Is it up?", "Try again") == "Is it up? Try again"
    assert (
        str(Rejected(Code.NOT_INITIALISED, "no cluster", hint="Run it"))
        == "rejected (not-initialised): no cluster. Run it"
    )


@pytest.mark.parametrize(
    "code", [Code.NOTHING_TO_DO, Code.ALREADY_INITIALISED, Code.TABLE_EXISTS, Code.KEYSPACE_EXISTS]
)
def test_what_is_there_already_has_a_hint_where_none_was_given(code: Code) -> None:
    with pytest.raises(Rejected) as refused:
        require(False, code, "it is there")
    assert refused.value.hint
    with pytest.raises(Rejected, match="Look again"):
        require(False, code, "it is there", hint="Look again")


def test_an_error_made_of_another_one_keeps_its_hint() -> None:
    other = EpochlakeError.of(Rejected(Code.LOST, "it is lost", hint="Replace it"))
    assert (other.reason, other.hint) == ("it is lost", "Replace it")


@pytest.mark.parametrize("error", examples(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_every_error_comes_out_of_an_executor_as_it_went_in(error: EpochlakeError, pickler: Any) -> None:
    error.exit_code, error.hint = 75, error.hint or "Look again"
    back = pickle.loads(pickler.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.reason, back.hint, back.args) == (str(error), error.reason, error.hint, error.args)
    assert vars(back) == vars(error)
    assert str(back).endswith(error.hint)


# What hints name


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may give, values as `FIELD`."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(part.value if isinstance(part, ast.Constant) else FIELD for part in parts)
        case ast.IfExp(body=one, orelse=other):
            yield from texts(one)
            yield from texts(other)
        case ast.BinOp(left=one, right=other):
            yield from texts(one)
            yield from texts(other)


def keyword_texts(keyword: str) -> list[tuple[str, str]]:
    """Where a keyword has a text in the source, and the text."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", text)
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for given in node.keywords
        if given.arg == keyword
        for text in texts(given.value)
    ]


HINTS = keyword_texts("hint")


def test_a_hint_is_a_sentence_of_its_own_without_a_full_stop() -> None:
    wrong = [
        (where, text) for where, text in HINTS if not re.match(rf"[A-Z`-]|{FIELD}|; if|$", text) or text.endswith(".")
    ]
    assert not wrong
    assert len(HINTS) > 200


def test_every_command_that_an_error_names_is_there() -> None:
    commands = {name for name, _ in walk()}
    groups = {name.split()[0] for name in commands}
    named = [
        (str(path.relative_to(ROOT)), words)
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant | ast.JoinedStr)
        for text in texts(node)
        for words in COMMAND.findall(text)
    ]
    wrong = [
        (where, words)
        for where, words in named
        if not words.startswith(("-", FIELD))
        if " ".join(words.split()[: 2 if words.split()[0] in groups - commands else 1]) not in commands
    ]
    assert not wrong
    assert len(named) > 30


def test_every_option_that_a_hint_names_is_there() -> None:
    options = {word for _, command in walk() for option in command.params for word in option.opts}
    options |= {"--root", "--conf", "--verbose", "--output", "--help", "--op", "--months", "--rows"}
    wrong = [(where, word) for where, text in HINTS for word in OPTION.findall(text) if word not in options]
    assert not wrong


def test_no_reason_of_an_error_tells_to_run_a_command() -> None:
    names = {kind.__name__ for kind in error_classes()} | {"require"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {text}"
        for path in CODE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in names
        for given in node.args
        for text in texts(given)
        if COMMAND.search(text) or re.search(r"[:.;] (run|try again|retry|check|give|use|choose|restore)\b", text, re.I)
    ]
    assert not wrong
