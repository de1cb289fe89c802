"""A failed command says what is wrong in a line, and what to do in a second one."""

from __future__ import annotations

import re

import pytest
from epochlake.jobs.cli.reference import walk
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code

from tests.support.command_line import CommandLine

ADVICE = re.compile(r"[:.;] (run|try|retry|check|give|use|choose|write|see|add|wait|ask|leave|name)\b|`epochlake", re.I)
"""What belongs into a hint."""

FAILURES = [
    (["log", "show", "99"], 2, "Ask for one from 1 to"),
    (["node", "add", "n1", "--datacenter", "dc1", "--rack", "r1", "--volume", "disks/x,1GB"], 3, "Choose another name"),
    (["node", "add", "n9", "--datacenter", "dc1", "--rack", "r1", "--volume", "d1=s4://x"], 2, "Use a path"),
    (["node", "add", "n9", "--datacenter", "dc1", "--rack", "r1", "--volume", "disks/y,much"], 2, "Write bytes"),
    (["node", "decommission", "n1"], 3, "Add a node first"),
    (["node", "set", "n1"], 2, "Give its --weight"),
    (["node", "move", "n1"], 2, "Give --token"),
    (["keyspace", "create", "9x", "--replication", "dc1=3"], 3, "Use a letter"),
    (["keyspace", "create", "sky", "--replication", "dc1=9"], 3, "Add nodes, or ask for less"),
    (["keyspace", "drop", "air"], 3, "Drop them"),
    (["table", "create", "air.crews", "--primary-key", "id", "--column", "id strange"], 2, "Use one of"),
    (
        ["table", "create", "air.crews", "--primary-key", "id", "--column", "id bigint", "--tablets", "3"],
        2,
        "Ask for 1",
    ),
    (["request", "cancel", "n1"], 3, "See `epochlake request list`"),
    (["placement", "explain", "air.flights"], 2, "Give its key"),
    (["status", "--at", "1", "--check"], 2, "Leave out --at"),
    (["node", "ad"], 2, "Did you mean `epochlake node add`? See `epochlake node --help`"),
    (["balance", "resume"], 3, "Nothing was committed, and nothing has to be"),
]


@pytest.mark.parametrize(("words", "code", "hint"), FAILURES, ids=[" ".join(words) for words, _, _ in FAILURES])
def test_a_failed_command_has_a_line_with_the_reason_and_one_with_the_hint(
    unchanged: CommandLine, words: list[str], code: int, hint: str
) -> None:
    before = unchanged.log()
    result = unchanged.text(*words)
    assert result.code == code, result.err
    reason, second = result.err.splitlines()[-2:]
    assert reason.startswith("epochlake: ")
    assert second.startswith(f"hint: {hint}")
    assert not ADVICE.search(reason), reason
    assert unchanged.log() == before


@pytest.mark.parametrize(("words", "code", "hint"), FAILURES, ids=[" ".join(words) for words, _, _ in FAILURES])
def test_a_document_of_an_error_has_the_hint_apart_and_in_its_message(
    unchanged: CommandLine, words: list[str], code: int, hint: str
) -> None:
    error = unchanged.json(*words).error
    assert error["exit_code"] == code
    assert error["hint"].startswith(hint)
    if error["type"] != "UsageError":
        assert error["message"].endswith(error["hint"])


def test_a_reason_without_a_hint_is_one_line_and_has_no_key(
    unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Rejected(Code.STALE_PLAN, "the numbers were planned on old metadata")

    monkeypatch.setattr("epochlake.jobs.cli.session.Session.show", broken)
    assert unchanged.text("node", "list").err.splitlines() == [
        "epochlake: rejected (stale-plan): the numbers were planned on old metadata"
    ]
    assert "hint" not in unchanged.json("node", "list").error


def test_what_there_is_not_is_told_with_what_was_meant(unchanged: CommandLine) -> None:
    for words, hint in (
        (["table", "show", "air.flihgts"], "Did you mean 'air.flights'?"),
        (["table", "show", "AIR.Flights"], "Did you mean 'air.flights'?"),
        (["query", "flights"], "Name it keyspace.table: air.flights"),
        (["table", "drop", "zoo.animals"], "`epochlake table list` lists them"),
        (["keyspace", "drop", "airs"], "Did you mean 'air'?"),
        (["node", "show", "zebra"], "`epochlake node list` lists them"),
        (["request", "cancel", "nothing"], "See `epochlake request list`"),
    ):
        result = unchanged.text(*words)
        assert (result.code, result.hint) == (3, hint), words


def test_the_first_command_that_a_stranger_tries_says_which_comes_before(empty: CommandLine) -> None:
    result = empty.text("status")
    assert result.code == 1
    assert result.hint is not None
    assert result.hint.startswith("Run `epochlake init` first, or name another root. ")
    assert "Where there was one, mount its disk" in result.hint
    assert "init" in dict(walk())


def test_an_unexpected_error_says_how_to_see_more_of_it(
    unchanged: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("epochlake.jobs.cli.session.Session.show", broken)
    result = unchanged.text("node", "list")
    assert result.code == 1
    assert result.error_text == (
        "epochlake: ZeroDivisionError: division by zero (unexpected) "
        "hint: Run it again with --verbose, and report what it prints"
    )
