"""The wheel holds every file of the packages, and works without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED_AS = {
    "epochlake": "epochlake",
    "placement": "epochlake/placement",
    "metastore": "epochlake/metastore",
    "jobs": "epochlake/jobs",
    "pyspark_epochlake": "pyspark_epochlake",
}
FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
made_by_python = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the sources: a build leaves files behind, which the next build would take up."""
    home = tmp_path_factory.mktemp("wheel")
    sources = home / "sources"
    sources.mkdir()
    for folder in INSTALLED_AS:
        shutil.copytree(ROOT / folder, sources / folder, ignore=made_by_python, symlinks=True)
    for file in FILES:
        shutil.copy2(ROOT / file, sources / file)
    offline = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(home), str(sources)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=home)
    assert ended.returncode == 0, ended.stderr
    [made] = home.glob("*.whl")
    return made


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in INSTALLED_AS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        [entry_points] = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        assert "epochlake = epochlake.jobs.cli.entry:run" in archive.read(entry_points).decode()
    assert held == expected
    assert {"epochlake/__init__.py", "epochlake/py.typed"} <= held


def test_an_image_is_built_of_what_a_wheel_is_built_of_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert [line for line in lines if line and not line.startswith(("#", "!"))] == ["*", "**/__pycache__"]
    assert sorted(kept) == sorted([*INSTALLED_AS, *FILES])


def test_public_names_work_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = """
import sys, epochlake
epochlake.open_cluster, epochlake.add_node, epochlake.Rejected, epochlake.ConsistencyLevel
print(epochlake.__version__)
print(*sorted(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "epochlake"), sep="\\n")
"""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )
    assert ended.returncode == 0, ended.stderr
    version, *files = ended.stdout.splitlines()
    assert f"epochlake-{version}-" in wheel.name
    assert len(files) > 10
    assert not [file for file in files if not file.startswith(str(tmp_path / "site"))]


WITHOUT_SPARK = """
import sys
class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "delta"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoSpark())
"""


def test_an_installation_without_spark_does_all_that_needs_none_and_says_what_does(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    told = WITHOUT_SPARK + (
        "import epochlake, sys\n"
        "from epochlake.jobs.cli.main import main\n"
        "codes = [main([*words, '--root', 'lake']) for words in (['init'], ['status'], ['log', 'list'], ['demo'])]\n"
        "try:\n    epochlake.session\nexcept ImportError as error:\n    print(error, file=sys.stderr)\n"
        "print(codes)\n"
    )
    environment = {**os.environ, "EPOCHLAKE__ZOOKEEPER__CONNECT": "127.0.0.1:1"}
    ended = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert ended.stdout.splitlines()[-1] == "[0, 0, 0, 1]", ended.stderr
    assert "epochlake: this needs PySpark, which is not installed here\nhint: Run `pip install" in ended.stderr
    assert "epochlake.session needs PySpark, which is not installed here" in ended.stderr
