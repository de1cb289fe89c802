"""What a directory says of the ZooKeeper server in it, and whether that starts with it or is prepared first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from epochlake.metastore.coordination.ensemble import OBSERVER, Server, parse_server
from epochlake.metastore.coordination.server_files import (
    DYNAMIC,
    STATIC,
    has_to_be_prepared,
    known_servers,
    write_server_files,
)
from epochlake.metastore.errors import CoordinationUnavailable
from epochlake.placement.errors import EpochlakeError, InvalidRequest

from tests.support.storages import STORAGE


def servers(*numbers: int, host: str = "zk") -> list[Server]:
    return [parse_server(f"{number}={host}{number}:2888:3888;2181") for number in numbers]


FOUR = servers(4)[0]
GONE = "is a member of the ensemble, and its data is gone"
SILENT = "is to be prepared, and the ensemble does not answer"


@pytest.mark.parametrize(
    ("known", "members", "outcome"),
    [
        (None, servers(1, 2), True),
        (servers(1, 2, 4), servers(1, 2), True),
        (servers(1, 2), servers(1, 2), True),
        ([], servers(1, 2), True),
        (servers(1, 2, 4), servers(1, 2, 4), False),
        # Whoever is a member and would not start by what it has seen: it was away when it became one.
        (servers(1, 2), servers(1, 2, 4), True),
        ([], servers(1, 2, 4), True),
        (servers(1, 2, 4, host="moved"), servers(1, 2), True),
        (None, servers(1, 2, 4), GONE),
        (servers(1, 2, 4), servers(1, 4, host="moved"), "server 4 is at moved4:2888:3888 already"),
        (servers(1, 2, 4), None, False),
        (None, None, SILENT),
        (servers(1, 2), None, SILENT),
        (servers(1, 2, 4, host="moved"), None, SILENT),
    ],
)
def test_a_server_starts_as_it_is_or_is_prepared_first_by_what_it_and_the_ensemble_know(
    known: Sequence[Server] | None, members: Sequence[Server] | None, outcome: bool | str
) -> None:
    if isinstance(outcome, bool):
        assert has_to_be_prepared(FOUR, known, members) is outcome
        assert has_to_be_prepared(FOUR.as_role(OBSERVER), known, members) is outcome
    else:
        with pytest.raises(CoordinationUnavailable if outcome == SILENT else InvalidRequest, match=outcome):
            has_to_be_prepared(FOUR, known, members)


def test_a_directory_tells_whom_its_server_knows_also_when_zookeeper_has_written_that(tmp_path: Path) -> None:
    place = tmp_path / "größer"
    assert known_servers(STORAGE, str(place)) is None
    write_server_files(STORAGE, str(place), FOUR, servers(1, 2))
    assert known_servers(STORAGE, str(place)) == (*servers(1, 2), FOUR)
    newer = place / f"{DYNAMIC}.100000003"
    newer.write_text("".join(f"{one}\n" for one in servers(2, 5)))
    settings = (place / STATIC).read_text(encoding="latin-1").replace(DYNAMIC, newer.name)
    (place / STATIC).write_text(settings, encoding="latin-1")
    assert known_servers(STORAGE, str(place)) == tuple(servers(2, 5))
    for rotten in ("server.4=\n", "version=x\n", ""):
        newer.write_text(rotten)
        assert known_servers(STORAGE, str(place)) == ()
    newer.unlink()
    assert known_servers(STORAGE, str(place)) == ()
    (place / "data" / "myid").write_text("")
    assert known_servers(STORAGE, str(place)) is None


def test_a_directory_with_the_data_of_another_ensemble_is_left_as_it_is(tmp_path: Path) -> None:
    write_server_files(STORAGE, str(tmp_path), FOUR, servers(1, 2))
    # Nothing of an ensemble is stored there yet: it may come into another one.
    write_server_files(STORAGE, str(tmp_path), FOUR, servers(1, 2, host="other"))
    (tmp_path / "data" / "version-2").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(EpochlakeError, match="has the data of another ensemble"):
        write_server_files(STORAGE, str(tmp_path), FOUR, servers(1, 2))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    write_server_files(STORAGE, str(tmp_path), FOUR, [*servers(7, 8), *servers(2, host="other")])
