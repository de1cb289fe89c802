"""Which Java is taken, and the one line for a machine where none will do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from epochlake.metastore.preflight import JavaUnsuitable, major_version, require_java


def fake_java(directory: Path, version: str) -> Path:
    """A `java` in `directory` that says it is `version`."""
    java = directory / "java"
    directory.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1"', 17),
        ("command not found", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(printed: str, major: int | None) -> None:
    assert major_version(printed) == major


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2"])
def test_java_17_and_21_will_do(version: str, tmp_path: Path) -> None:
    java = fake_java(tmp_path / "bin", version)
    assert require_java({"PATH": str(java.parent)}) == java


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    at_home, on_path = fake_java(tmp_path / "home" / "bin", "21.0.2"), fake_java(tmp_path / "bin", "17.0.1")
    assert require_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}) == at_home


@pytest.mark.parametrize(
    ("version", "said"), [("11.0.2", "is Java 11"), ("1.8.0_402", "is Java 8"), ("25", "is Java 25")]
)
def test_another_java_is_refused_in_one_line(version: str, said: str, tmp_path: Path) -> None:
    java = fake_java(tmp_path / "bin", version)
    with pytest.raises(JavaUnsuitable, match=said) as caught:
        require_java({"PATH": str(java.parent)})
    assert "needs Java 17 or 21" in str(caught.value)
    assert str(java) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_java_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(JavaUnsuitable, match="needs Java 17 or 21, but there is no java"):
        require_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named_and_not_passed_over(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "bin", "17.0.1")
    with pytest.raises(JavaUnsuitable, match=r"JAVA_HOME is .*nowhere"):
        require_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(on_path.parent)})


def test_the_check_runs_before_anything_is_installed(tmp_path: Path) -> None:
    repository = Path(__file__).parents[3]
    (tmp_path / "epochlake").mkdir()
    for linked in ("placement", "metastore", "epochlake/__init__.py"):
        (tmp_path / "epochlake" / Path(linked).name).symlink_to(repository / linked)
    nothing_installed = {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path), "HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "epochlake.metastore.preflight"],
        capture_output=True,
        text=True,
        env=nothing_installed,
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "there is no java" in ended.stderr
