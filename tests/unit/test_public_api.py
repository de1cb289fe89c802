"""The public API: `epochlake` has the names that docs/api.md says, loads them late, and tells type checkers of them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import warnings
from enum import Enum
from pathlib import Path
from types import ModuleType

import epochlake
import epochlake.airflow
import epochlake.pictures
import epochlake.testing
import pytest
from epochlake.jobs.cluster import Cluster, initialise
from epochlake.metastore.configuration import Configuration

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "epochlake" / "__init__.py"
HOMES = {name: f"epochlake.{home}" for name, home in epochlake._HOMES.items()}
MODULES = [epochlake.airflow, epochlake.pictures, epochlake.testing]
"""Modules of public names, beside the package itself."""
NEEDS_AIRFLOW = epochlake.airflow
"""What its names are is tested where Airflow is installed (`make test-airflow`)."""
NEEDS_SPARK = {"attach", "MetadataFrames", "Pipeline", "compact", "register", "repair", "session"}
"""Names that start nothing, but import PySpark when they are used."""


def loaded_by(program: str) -> set[str]:
    """The modules that a fresh Python has loaded after `program`, those of a bare start left out."""
    show = "import sys; bare = set(sys.modules)\n{}\nprint(*sorted(set(sys.modules) - bare))"
    ended = subprocess.run(
        [sys.executable, "-c", show.format(program)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(ended.stdout.split())


def test_type_checkers_and_python_are_told_the_same_names() -> None:
    [told] = [
        node
        for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    to_type_checkers = {
        alias.name: node.module for node in told.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert to_type_checkers == HOMES
    assert sorted([*HOMES, "__version__"]) == sorted(epochlake.__all__)
    assert set(epochlake.__all__) <= set(dir(epochlake))


@pytest.mark.parametrize("name", sorted(HOMES))
def test_a_public_name_is_what_its_home_has_and_says_what_it_is_for(name: str) -> None:
    value = getattr(epochlake, name)
    assert value is getattr(importlib.import_module(HOMES[name]), name)
    assert value is getattr(epochlake, name)
    assert value.__name__ == name
    assert inspect.getdoc(value)
    if isinstance(value, type):
        assert value.__doc__ not in {base.__doc__ for base in (*value.__mro__[1:], Enum)}
        public = [member for key, member in vars(value).items() if not key.startswith("_")]
        assert not [member for member in public if inspect.isfunction(member) and not member.__doc__]


def test_importing_epochlake_loads_nothing_but_the_standard_library() -> None:
    loaded = loaded_by("import epochlake; epochlake.__version__; dir(epochlake)")
    own = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    assert own == {"epochlake", "epochlake.placement", "epochlake.placement.version"}


def test_only_names_that_work_with_dataframes_load_spark() -> None:
    names = sorted(HOMES.keys() - NEEDS_SPARK)
    assert "pyspark" not in loaded_by(f"from epochlake import {', '.join(names)}")


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'epochlake' has no attribute 'add_nodes'"):
        epochlake.add_nodes  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'administration'"):
        exec("from epochlake import administration")


def test_a_deprecated_name_warns_and_is_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(epochlake._DEPRECATED, "start_cluster", ("init_cluster", "0.3"))
    said = "epochlake.start_cluster is now epochlake.init_cluster; release 0.3 drops the old name"
    for use in ("import epochlake; old = epochlake.start_cluster", "from epochlake import start_cluster as old"):
        namespace: dict[str, object] = {}
        with pytest.warns(DeprecationWarning, match=said) as warned:
            exec(compile(use, "program.py", "exec"), namespace)
        assert namespace["old"] is epochlake.init_cluster
        assert {warning.filename for warning in warned} == {"program.py"}
    assert "start_cluster" not in dir(epochlake)


def test_no_public_name_is_deprecated_and_still_taught() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert [getattr(epochlake, name) for name in epochlake.__all__]
    assert not set(epochlake._DEPRECATED) & set(epochlake.__all__)
    assert {successor for successor, _ in epochlake._DEPRECATED.values()} <= set(epochlake.__all__)


def test_the_page_lists_each_public_name_once() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    of_modules = [f"{module.__name__.partition('.')[2]}.{name}" for module in MODULES for name in module.__all__]
    assert sorted(listed) == sorted([*epochlake.__all__, *of_modules])


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_public_module_has_documented_names_and_their_members_too(module: ModuleType) -> None:
    assert {path.stem for path in SOURCE.parent.glob("[a-z]*.py")} == {one.__name__.split(".")[1] for one in MODULES}
    for name in module.__all__ if module is not NEEDS_AIRFLOW else ():
        value = getattr(module, name)
        assert inspect.getdoc(value)
        public = [member for key, member in vars(value).items() if not key.startswith("_")]
        assert not [member for member in public if inspect.isfunction(member) and not member.__doc__]


def test_the_names_for_airflow_are_told_to_type_checkers_and_to_python_alike() -> None:
    source = ast.parse(Path(epochlake.airflow.__file__ or "").read_text(encoding="utf-8"))
    [told] = [node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    to_type_checkers = {
        alias.name: (node.module or "").removeprefix("epochlake.jobs.airflow_provider.")
        for node in told.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert to_type_checkers == epochlake.airflow._HOMES
    assert sorted(to_type_checkers) == epochlake.airflow.__all__
    assert "airflow" not in loaded_by("import epochlake.airflow; dir(epochlake.airflow)")
    with pytest.raises(AttributeError, match="has no attribute 'EpochlakeSensors'"):
        epochlake.airflow.EpochlakeSensors  # noqa: B018


def test_a_public_module_loads_no_spark_and_the_package_does_not_load_it() -> None:
    assert "pyspark" not in loaded_by("import epochlake.testing")
    assert not {"epochlake.testing", "epochlake.airflow", "epochlake.pictures"} & loaded_by(
        "import epochlake; dir(epochlake)"
    )


def test_the_names_of_before_the_api_do_the_same_and_warn(tmp_path: Path) -> None:
    configuration = Configuration(root=str(tmp_path / "root"))
    with pytest.warns(DeprecationWarning, match=r"epochlake\.init_cluster"):
        assert initialise(configuration, "lake").epoch == 1
    with pytest.warns(DeprecationWarning, match=r"epochlake\.open_cluster"), Cluster.open(configuration) as cluster:
        assert cluster.metadata.identity.name == "lake"
