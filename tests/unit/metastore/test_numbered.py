"""Documents are found by the names under which they are written, and by no others."""

from __future__ import annotations

from pathlib import Path

from epochlake.metastore.storage.numbered import numbers, path_of

from tests.support.storages import STORAGE


def test_only_what_is_named_as_it_is_written_has_a_number(tmp_path: Path) -> None:
    directory = str(tmp_path / "there")
    assert numbers(STORAGE, directory) == []
    STORAGE.create_directory(directory)
    for number in (12, 3, 10**19):
        assert STORAGE.put_if_absent(path_of(directory, number), b"")
    for name in ("7.json", "0" * 20, "tried", f"{5:020}.json.aside", "٣".zfill(20) + ".json", f"{10**22}.json"):
        (tmp_path / "there" / name).touch()
    assert numbers(STORAGE, directory) == [3, 12, 10**19, 10**22]
    assert Path(path_of(directory, 3)).name == "00000000000000000003.json"
