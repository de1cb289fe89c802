"""The blocks of a page of documentation, run in order, and what they print beside what the page says.

A block is indented by four spaces. It holds commands (`epochlake …`, or `$ …` with what they print below), Python, or
what the block before it prints. Numbers, ids, hosts and blanks may differ; a `…` stands for anything.

    python -m tests.support.pages docs/ring.md      # write what is printed now into the page, where the two differ
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from epochlake.jobs.cli.main import main as command_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[2]
HOME = "/home/me/lake"
"""Where the reader of a page is."""

RUN_ELSEWHERE = {
    "make": "CI itself runs the tests, and tests/spark/test_demo.py the demo",
    "spark-submit": "tests/submitted submits jobs",
    "nodetool": "there is no Cassandra here: ring.txt is what it printed for six nodes",
}
PROGRAMS = ("epochlake ", *(f"{name} " for name in RUN_ELSEWHERE))


class Command(NamedTuple):
    """A command as it is typed on a line of a page, and what it prints there; empty when the page does not say."""

    line: int
    typed: str
    printed: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.typed, comments=True)


class Program(NamedTuple):
    """Python on a line of a page."""

    line: int
    source: str


class Done(NamedTuple):
    """A command that was run, with its exit code and what it printed."""

    command: Command
    code: int
    printed: str


def steps(page: Path) -> Iterator[Command | Program]:
    """What a reader of the page does, in order."""
    held: Command | None = None
    for line, text in _blocks(page.read_text(encoding="utf-8")):
        if not text.startswith(("$ ", *PROGRAMS)):
            if _is_python(text):
                if held is not None:
                    yield held
                held = None
                yield Program(line, text)
            else:
                assert held is not None, f"{page.name}:{line}: nothing prints this:\n{text}"
                assert not held.printed, f"{page.name}:{line}: {held.typed} prints something else already"
                held = held._replace(printed=text)
            continue
        for command in _commands(line, text):
            if held is not None:
                yield held
            held = command
    if held is not None:
        yield held


def perform(page: Path, spark: SparkSession, home: Path) -> Iterator[Done]:
    """Do what a page says, in the empty folder `home`, on a terminal of 80 columns."""
    (home / "ring.txt").write_bytes((REPOSITORY / "tests/data/nodetool_ring.txt").read_bytes())
    namespace: dict[str, object] = {"spark": spark}
    settings = {"COLUMNS": "80", "EPOCHLAKE__COORDINATOR__BACKOFF_SECONDS": "0.05"}
    with chdir(home), patch.dict(os.environ, settings):
        for step in steps(page):
            if isinstance(step, Program):
                exec(compile("\n" * (step.line - 1) + step.source, str(page), "exec"), namespace)
            elif step.words[0] not in RUN_ELSEWHERE:
                yield _run(step, str(home))


def _run(command: Command, home: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line(command.words[1:])
    printed = err.getvalue() + out.getvalue() if code else out.getvalue()
    return Done(command, code, "\n".join(row.rstrip() for row in printed.replace(home, HOME).strip("\n").splitlines()))


def agrees(printed: str, expected: str) -> bool:
    """Whether a program printed what a page says, but for numbers, ids, hosts and blanks."""
    pattern = re.escape(_plain(expected)).replace("…", ".*?")
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """The number of the first line and the text of each block; an indented block in a list is one as well."""
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        if not lines[index].startswith("    ") or (index and lines[index - 1].strip()):
            index += 1
            continue
        end = index
        while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
            end += 1
        yield index + 1, textwrap.dedent("\n".join(lines[index:end])).strip("\n")
        index = end


def _commands(line: int, text: str) -> Iterator[Command]:
    """The commands of a block, continued lines put together; without `$` nothing in it is printed."""
    prompted = text.startswith("$ ")
    typed: list[tuple[int, str, list[str]]] = []
    continued = False
    for offset, row in enumerate(text.splitlines()):
        if continued:
            number, command, printed = typed[-1]
            typed[-1] = (number, command.removesuffix("\\") + row.strip(), printed)
        elif row.startswith("$ ") or (not prompted and row.strip()):
            typed.append((line + offset, row.removeprefix("$ "), []))
        elif prompted:
            typed[-1][2].append(row)
        continued = (continued or row.startswith("$ ") or not prompted) and row.endswith("\\")
    for number, command, printed in typed:
        yield Command(number, command, "\n".join(printed).strip("\n"))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


_NORMAL = [
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}"), "ID"),
    (re.compile(r"-[0-9a-f]{12}\b"), ""),
    (re.compile(r"(?<=\s)[\w.-]+:\d+\b"), "HOST"),
    (re.compile(r"[-+]?\d[\d,.]*"), "0"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"\s+"), " "),
]


def _plain(text: str) -> str:
    for pattern, plain in _NORMAL:
        text = pattern.sub(plain, text)
    return text.strip()


def rewrite(page: Path, spark: SparkSession) -> None:
    """Put what the commands print now into the page, where it says something else."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as home:
        for done in perform(page, spark, Path(home).resolve()):
            print(f"{done.code} {done.command.typed}", file=sys.stderr)
            if done.command.printed and not agrees(done.printed, done.command.printed):
                at = text.index(done.command.printed.splitlines()[0], text.index(done.command.typed[:60]))
                indent = " " * (at - text.rfind("\n", 0, at) - 1)
                old = textwrap.indent(done.command.printed, indent)
                assert old in text, f"{page.name}: cannot find what {done.command.typed} prints"
                text = text.replace(old, textwrap.indent(done.printed, indent), 1)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    from epochlake.jobs.spark_session import session

    for name in sys.argv[1:]:
        rewrite(Path(name).resolve(), session("pages", master="local[2]"))
