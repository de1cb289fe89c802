"""Running the command line in the test's own process, and looking at what it printed and left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from epochlake.jobs.cli.main import main
from epochlake.metastore import threads
from epochlake.metastore.log.delta import DeltaLog

from tests.support.storages import STORAGE

COLUMNS = "id bigint, note string"


def fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value has exactly the keys that its type declares, all the way down."""
    arguments = [one for one in get_args(kind) if one is not type(None)]
    optional = len(arguments) < len(get_args(kind))
    if value is None or kind is Any:
        return optional or kind is Any
    if get_origin(kind) in (list, tuple):
        return all(fits(item, arguments[0]) for item in value)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return set(value) == set(hints) and all(fits(value[key], hint) for key, hint in hints.items())
    return not optional or fits(value, arguments[0])


class Result(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The one error of a run with `--output json`."""
        assert not self.out, "data and an error"
        error: dict[str, Any] = json.loads(self.err)["error"]
        return error

    @property
    def error_text(self) -> str:
        """What a failed run has printed: one line, and one more where it has a hint."""
        assert not self.out, f"data and an error: {self.out}"
        first, *more = self.err.splitlines()
        assert first.startswith("epochlake: ")
        assert len(more) < 2, f"more than a hint: {self.err}"
        assert all(line.startswith("hint: ") for line in more), self.err
        return " ".join((first, *more))

    @property
    def hint(self) -> str:
        """The hint that a failed run has printed; empty when it has none."""
        return self.error_text.partition(" hint: ")[2]


class CommandLine:
    """Runs commands at one root; `text` and `json` by how they print."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys

    def text(self, *words: str | Path) -> Result:
        self._capsys.readouterr()
        code = main(["--root", str(self.root), *map(str, words)])
        threads.wait_until_idle()  # as the end of its process would: a log member that is late writes until then
        printed = self._capsys.readouterr()
        return Result(code, printed.out, printed.err)

    def json(self, *words: str | Path) -> Result:
        return self.text("--output", "json", *words)

    def done(self, *words: str | Path) -> Any:
        """The document of a command that has to succeed."""
        result = self.json(*words)
        assert result.code == 0, result.err
        return result.json

    def log(self) -> list[tuple[int, str]]:
        """Epochs and hashes of everything in the log; empty when there is none."""
        if not (self.root / "log" / "_delta_log").exists():
            return []
        return [(entry.epoch, entry.hash) for entry in DeltaLog(STORAGE, str(self.root / "log")).read(0)]
