"""Volumes have places of their own: not in or around the root or another volume, however the place is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from epochlake.jobs.administration import places
from epochlake.jobs.replicas.volumes import MARKER_FILE

from tests.support.command_line import CommandLine

ADD = ["node", "add", "n4", "--datacenter", "dc1", "--rack", "r1", "--volume"]

TAKEN = {
    "the root": "root",
    "inside the root": "root/disk",
    "inside the log": "root/log/disk",
    "around the root": ".",
    "above all": "/",
    "another volume": "volumes/n1",
    "another volume with a slash": "volumes/n1/",
    "inside another volume": "volumes/n1/air/x",
    "around all volumes": "volumes",
    "by dots": "elsewhere/../volumes/n1/x",
    "by a link": "link/n1/x",
    "by a link to the root": "to-the-root",
    "by a link inside": "to-the-root/x/y",
    "as a URI": "file://{here}/volumes/n1/x",
    "as a URI with signs": "file://{here}/volumes/%6E1/x",
    "as a URI of this machine": "file://localhost{here}/root",
}
"""How a place that is taken may be written; the nodes n1 to n3 have their volumes in `volumes`."""


@pytest.mark.parametrize("written", TAKEN.values(), ids=TAKEN)
def test_a_volume_in_a_place_that_is_taken_is_refused_and_nothing_is_made(unchanged: CommandLine, written: str) -> None:
    line, here = unchanged, unchanged.root.parent
    for link, target in (("link", "volumes"), ("to-the-root", "root")):
        if not (here / link).is_symlink():
            (here / link).symlink_to(here / target)
    place = written.format(here=here)
    before, there = line.log(), sorted(here.rglob("*"))
    for how in ([], ["--dry-run"]):
        refused = line.json(*ADD, f"d1={place},1GB", *how)
        assert refused.code in (2, 3), refused.err
    assert (line.log(), sorted(here.rglob("*"))) == (before, there)


@pytest.mark.parametrize(
    "uri",
    ["ftp://host/disk", "s4://bucket/disk", "file:/disk", "file:disk", "file://host/disk", "s3:/bucket", "C:/disk"],
)
@pytest.mark.parametrize("how", [[], ["--dry-run"]], ids=["committed", "dry run"])
def test_a_volume_of_a_kind_that_nobody_can_open_is_refused(unchanged: CommandLine, uri: str, how: list[str]) -> None:
    line, here = unchanged, unchanged.root.parent
    before, there = line.log(), sorted(here.rglob("*"))
    refused = line.json(*ADD, f"d1={uri},1GB", *how)
    assert refused.code == 2
    assert uri in refused.error["message"]
    assert (line.log(), sorted(here.rglob("*"))) == (before, there)


@pytest.mark.parametrize("place", ["a-file", "a-file/below", "nowhere", "nowhere/below"])
@pytest.mark.parametrize("how", [[], ["--dry-run"]], ids=["committed", "dry run"])
def test_a_volume_where_no_directory_can_be_is_refused_in_a_dry_run_too(
    unchanged: CommandLine, place: str, how: list[str]
) -> None:
    line, here = unchanged, unchanged.root.parent
    (here / "a-file").touch()
    if not (here / "nowhere").is_symlink():
        (here / "nowhere").symlink_to(here / "that-is-not-there")
    before = line.log()
    refused = line.json(*ADD, f"d1={here / place},1GB", *how)
    assert refused.code == 2
    assert place.partition("/")[0] in refused.error["message"]
    assert line.log() == before


def test_two_volumes_of_one_node_are_apart_too(unchanged: CommandLine) -> None:
    for one, two in (("a", "a/b"), ("a/b", "a"), ("a", "x/../a"), ("s3://bucket/a", "s3a://bucket/a/b")):
        refused = unchanged.json(*ADD, f"d1={one},1GB", "--volume", f"d2={two},1GB", "--dry-run")
        assert refused.code == 2, (one, two)
    apart = unchanged.json(*ADD, "d1=a,1GB", "--volume", "d2=ab,1GB", "--dry-run")
    assert apart.code == 0, apart.err


def test_a_directory_that_is_mounted_twice_is_known_by_its_inode(
    unchanged: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount of the same directory has another path and the same device and inode, as a link seems to have."""
    twice = tmp_path / "mounted"
    twice.mkdir()
    real = os.stat

    def stat(path: str, **options: object) -> os.stat_result:
        return real(str(path).replace(str(twice), str(unchanged.root.parent / "volumes" / "n1")), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(places.os, "stat", stat)
    assert unchanged.json(*ADD, f"d1={twice},1GB").code == 2
    assert unchanged.json(*ADD, f"d1={twice}/x,1GB").code == 2


def test_a_place_below_a_volume_of_somebody_else_is_refused(unchanged: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / MARKER_FILE).write_text("{}")
    refused = unchanged.json(*ADD, f"d1={tmp_path}/theirs/below,1GB")
    assert refused.code == 2
    assert MARKER_FILE in refused.error["message"]


def test_a_new_disk_is_mounted_where_the_lost_one_was(grown: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "volumes" / "n1" / MARKER_FILE).unlink()
    done = grown.json("node", "replace", "n1", "n4", "--volume", f"d1={tmp_path}/volumes/n1,1GB")
    assert done.code == 0, done.err


def test_nodes_on_one_file_system_are_told_so_when_one_is_added(grown: CommandLine) -> None:
    added = grown.text(*ADD, "d1=disk,1GB")
    assert added.code == 0
    assert added.err == (
        "epochlake: node n4 is on one file system with n1, n2, n3: racks protect from nothing there, one disk loses "
        "all of their replicas\n"
    )
    assert grown.text(*ADD[:2], "n5", *ADD[3:], "d1=other,1GB", "--dry-run").err == ""


ODD = ["a%20b", "c\\x", "line\nbreak"]


@pytest.mark.parametrize("name", ODD)
def test_a_path_that_would_be_read_as_another_one_is_refused_and_nothing_is_made(
    unchanged: CommandLine, tmp_path: Path, name: str
) -> None:
    words = ["node", "add", "n9", "--datacenter", "dc1", "--rack", "r1", "--volume", f"d1={tmp_path / name},1GiB"]
    for how in ([], ["--dry-run"]):
        refused = unchanged.json(*words, *how)
        assert (refused.code, "Choose a directory without" in refused.error["hint"]) == (1, True)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ODD)
def test_a_root_that_would_be_read_as_another_one_is_refused_and_nothing_is_made(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = CommandLine(tmp_path / name, capsys)
    for words in (["init"], ["init", "--dry-run"], ["status"]):
        refused = command.json(*words)
        assert (refused.code, "Choose a directory without" in refused.error["hint"]) == (1, True)
    assert not (tmp_path / name).exists()


def test_a_name_that_no_file_system_takes_is_refused(unchanged: CommandLine, tmp_path: Path) -> None:
    words = [
        "node",
        "add",
        "n9",
        "--datacenter",
        "dc1",
        "--rack",
        "r1",
        "--volume",
        f"d1={tmp_path / ('x' * 300)},1GiB",
    ]
    refused = unchanged.json(*words)
    assert (refused.code, "too long" in refused.error["message"]) == (2, True)
