"""Which tests are long, as measured: `python -m tests.support.long_tests build/unit.xml build/spark.xml`.

The arguments are what pytest writes with `--junitxml`, of runs with EPOCHLAKE_TESTS_THOROUGH or without. Tests of the
log, of the commit protocol and of placement are never called long: each run of the tests has all of them.
"""

from __future__ import annotations

import ast
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LONG = REPOSITORY / "tests" / "data" / "long_tests.txt"

FOLDERS = (
    "tests/unit/jobs/",
    "tests/spark/",
    "tests/protocol/test_agent_tasks.py",
    "tests/protocol/test_agents_zookeeper.py",
    "tests/protocol/test_coordination_commands.py",
    "tests/protocol/test_kept_ensemble.py",
)
"""Folders of tests that may be long ones, and files that start processes on which no commit depends."""

SECONDS = 0.7
"""A function whose cases together take so long is a long test."""


def names(file: Path = LONG) -> frozenset[str]:
    """The long tests as pytest names them, without their cases."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def may_be_drawn(test: str) -> bool:
    """Whether a run may leave it out: it is a function of these folders that has no slice of its own.

    Methods are contracts, which every implementation has to keep in each run.
    """
    file, _, function = test.partition("::")
    return file.startswith(FOLDERS) and function in _without_slice(REPOSITORY / file)


@cache
def _without_slice(file: Path) -> frozenset[str]:
    """The functions of a file of tests that are not marked by `@sliced`."""
    if not file.is_file():
        return frozenset()
    functions = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    return frozenset(one.name for one in functions if not any("sliced" in ast.unparse(d) for d in one.decorator_list))


def measured(files: Iterable[Path]) -> list[str]:
    """The long tests of some runs."""
    seconds: Counter[str] = Counter()
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            module, function = case.attrib["classname"], case.attrib["name"].partition("[")[0]
            seconds[f"{module.replace('.', '/')}.py::{function}"] += float(case.attrib["time"])
    return sorted(test for test, took in seconds.items() if took >= SECONDS and may_be_drawn(test))


def main(arguments: Sequence[str]) -> int:
    found = measured(map(Path, arguments))
    head = f"# Tests that take {SECONDS} s or more; tests/support/long_tests.py writes this file.\n"
    LONG.write_text(head + "".join(f"{test}\n" for test in found), encoding="utf-8")
    print(f"{len(found)} long tests are named in {LONG}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
