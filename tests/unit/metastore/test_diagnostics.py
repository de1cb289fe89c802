"""Where log messages go, and what is said about a logging file that does not work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from epochlake.metastore.configuration import LoggingSettings
from epochlake.metastore.diagnostics import start_logging
from epochlake.metastore.errors import ConfigurationError

SHIPPED = Path(__file__).parents[3] / "conf" / "logging.toml"

PROGRAM = """
import logging, sys
from epochlake.metastore.configuration import LoggingSettings
from epochlake.metastore.diagnostics import start_logging
start_logging(LoggingSettings(level=sys.argv[1], file=sys.argv[2]))
logging.getLogger("epochlake.jobs").info("a step")
logging.getLogger("kazoo.client").warning("a broken connection")
"""


def run(level: str, file: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: logging is switched on once for a process."""
    return subprocess.run([sys.executable, "-c", PROGRAM, level, file], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    ("level", "file", "said"), [("INFO", "", True), ("WARNING", "", False), ("ERROR", str(SHIPPED), True)]
)
def test_messages_of_the_level_go_to_stderr_and_none_to_stdout(level: str, file: str, said: bool) -> None:
    ended = run(level, file)
    assert ended.stdout == ""
    assert ("a step" in ended.stderr) is said
    assert "a broken connection" not in ended.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        ("[root", "does not configure logging"),
        ("version = 1\n[handlers.x]\nclass = 'no.such.Class'", "does not configure logging"),
        ("[root]\nlevel = 'INFO'", "does not configure logging"),
    ],
)
def test_a_file_that_does_not_work_is_named(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said) as caught:
        start_logging(LoggingSettings(file=str(file)))
    assert str(file) in str(caught.value)
