"""Other releases of the product: packages from a wheel of an earlier commit, and their processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def packages_of(commit: str, home: Path) -> Path:
    """Where the packages of a commit are, from a wheel of its own that is made below `home`. Skips the test where there
    is no history with that commit.
    """
    archive = home / "sources.tar"
    made = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), commit], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"there is no history with commit {commit} here: {made.stderr.strip()}")
    with tarfile.open(archive) as sources:
        sources.extractall(home / "sources", filter="data")
    offline = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(home), str(home / "sources")]
    built = subprocess.run(command, capture_output=True, text=True, cwd=home)
    assert built.returncode == 0, built.stderr
    [wheel] = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(home / "site")
    return home / "site"


class Release:
    """One release of the product on a root, each command a process of its own. `site`: its packages; None: ours."""

    def __init__(self, root: Path, site: Path | None) -> None:
        self.root = root
        self.environment = {**os.environ, "PYTHONPATH": str(site)} if site else dict(os.environ)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "epochlake.jobs.cli.entry", "--root", str(self.root), "-o", "json"]
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, cwd=self.root.parent, env=self.environment
        )

    def done(self, *words: str) -> object:
        ended = self.run(*words)
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def program(self, text: str, *words: str) -> subprocess.Popen[str]:
        """A process that runs `text`, a Python program, with the root and `words` as its arguments."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", text, str(self.root), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.root.parent,
            env=self.environment,
        )
