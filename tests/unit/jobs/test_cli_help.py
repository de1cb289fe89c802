"""What `--help` shows on a narrow terminal, and what is said of a word that is no command."""

from __future__ import annotations

import random
from typing import Any

import pytest
from epochlake.jobs.cli.helping import MEANT, meant
from epochlake.jobs.cli.main import main
from epochlake.jobs.cli.reference import walk

from tests.support.slices import some

COMMANDS = [(name, command) for name, command in walk() if name != "demo"]
GROUPS = sorted({name.split()[0] for name, _ in COMMANDS if " " in name})


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def helped(capsys: pytest.CaptureFixture[str], name: str) -> str:
    assert main([*name.split(), "--help"]) == 0
    return capsys.readouterr().out


def test_every_help_fits_a_narrow_terminal_and_names_its_options_whole(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = random.sample(COMMANDS, some(len(COMMANDS), 20))
    for name, command in [("", None), *((group, None) for group in GROUPS), *tried, ("demo", None)]:
        shown = helped(capsys, name)
        assert max(map(len, shown.splitlines())) <= 80, shown
        assert not any(word in shown for word in ("<bool>", "<str>", "<int", "list[")), shown
        for parameter in command.params if command is not None else ():
            if parameter.param_type_name == "option":
                assert all(one in shown for one in parameter.opts), (parameter.opts, shown)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_option_and_argument_is_explained(name: str, command: Any) -> None:
    unexplained = [parameter.opts for parameter in command.params if not parameter.help]
    assert (bool(command.help), unexplained) == (True, [])


def test_brackets_in_a_text_are_shown_and_paragraphs_are_as_wide_as_the_terminal(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    said = " ".join(helped(capsys, "status").replace("│", " ").split())
    assert "the level of `[pipeline] consistency`" in said
    said = " ".join(helped(capsys, "placement simulate").replace("│", " ").split())
    assert "leave NODE [force]" in said
    shown = [line.rstrip() for line in helped(capsys, "load").splitlines()]
    first = next(number for number, line in enumerate(shown) if line.startswith(" Columns that a file lacks"))
    paragraph = shown[first : shown.index("", first)]
    assert min(map(len, paragraph[:-1])) > 65, paragraph


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["node", "join", "n4"], "Did you mean `epochlake node add`?"),
        (["node", "ls"], "Did you mean `epochlake node list`?"),
        (["table", "describe", "air.flights"], "Did you mean `epochlake table show`?"),
        (["tables"], "Did you mean `epochlake table`?"),
        (["select"], "Did you mean `epochlake query`?"),
        (["node", "xyzzy"], "See `epochlake node --help`: add, list, show,"),
    ],
    ids=" ".join,
)
def test_a_word_that_is_no_command_is_told_what_was_meant(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"hint: {hint}" in said
    assert said.count("\n") == 2


def test_what_is_meant_by_other_words_are_commands() -> None:
    names = [name for name, _ in COMMANDS]
    groups = {group: [name.split()[1] for name in names if name.startswith(f"{group} ")] for group in GROUPS}
    anywhere = {*names, *(leaf for leaves in groups.values() for leaf in leaves)}
    assert {one for several in MEANT.values() for one in several} <= anywhere
    assert meant("leave", groups["node"]) == "decommission"
    assert meant("delete", groups["table"]) == "drop"
