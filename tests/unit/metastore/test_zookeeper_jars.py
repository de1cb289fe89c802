"""The jars of ZooKeeper are found however PySpark is imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from epochlake.metastore.coordination.embedded import jars as module
from epochlake.metastore.coordination.embedded.jars import ZooKeeperMissing, zookeeper_jars


def test_they_are_in_the_installed_package() -> None:
    assert list(zookeeper_jars({}).glob("zookeeper-*.jar"))


def test_of_a_zip_they_are_in_the_directory_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "zookeeper-3.9.5.jar").touch()
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    spec = importlib.util.spec_from_loader("pyspark", None, is_package=True)
    assert spec is not None
    spec.submodule_search_locations = [str(archive / "pyspark")]
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: spec)
    assert zookeeper_jars({}) == tmp_path / "jars"


def test_spark_home_is_looked_in_and_without_any_place_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ZooKeeperMissing, match=r"epochlake\[spark\].* SPARK_HOME .*zookeeper\.connect"):
        zookeeper_jars({"SPARK_HOME": str(tmp_path)})
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "zookeeper-3.9.5.jar").touch()
    assert zookeeper_jars({"SPARK_HOME": str(tmp_path)}) == tmp_path / "jars"
