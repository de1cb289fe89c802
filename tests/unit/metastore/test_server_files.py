"""What a directory says of the ZooKeeper server in it, and whether that starts with it or is prepared first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from epochlake.metastore.coordination.ensemble import OBSERVER, EnsembleConfiguration, Server, parse_server
from epochlake.metastore.coordination.server_files import (
    DYNAMIC,
    STATIC,
    Stored,
    has_to_be_prepared,
    require_data,
    stored,
    write_server_files,
)
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable
from epochlake.placement.errors import EpochlakeError, InvalidRequest

from tests.support.storages import STORAGE


def servers(*numbers: int, host: str = "zk") -> list[Server]:
    return [parse_server(f"{number}={host}{number}:2888:3888;2181") for number in numbers]


FOUR = servers(4)[0]
GONE = "is a member of the ensemble, and its data is gone"
LOST = "has lost its data, and the ensemble does not answer"
OF_ITS_OWN = "is a member of the ensemble, and in its directory it is one of its own"
SILENT = "is to be prepared, and the ensemble does not answer"


def ensemble(*members: Server, version: int = 9) -> EnsembleConfiguration:
    return EnsembleConfiguration(version, members)


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
        # Its directory is gone: prepared anew it has no part in an election before it has followed.
        (None, servers(1, 2, 4), True),
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
    there = Stored(None if known is None else tuple(known), 9)
    answers = None if members is None else ensemble(*members)
    if isinstance(outcome, bool):
        assert has_to_be_prepared(FOUR, there, answers) is outcome
        assert has_to_be_prepared(FOUR.as_role(OBSERVER), there, answers) is outcome
    else:
        with pytest.raises(CoordinationUnavailable if outcome == SILENT else InvalidRequest, match=outcome):
            has_to_be_prepared(FOUR, there, answers)


@pytest.mark.parametrize(
    ("version", "known", "outcome"),
    [
        (8, servers(1, 2, 4), True),
        (0, servers(1, 2, 4), True),
        (8, servers(1, 2, 4, 5), False),
        (9, servers(1, 2, 4), False),
        # The ensemble was asked by way of a server that is behind.
        (10, servers(1, 2, 4), False),
    ],
)
def test_a_member_that_was_away_starts_with_the_members_of_now(
    version: int, known: Sequence[Server], outcome: bool
) -> None:
    there = Stored(tuple(known), version)
    assert has_to_be_prepared(FOUR, there, ensemble(*servers(1, 2, 4, 5))) is outcome
    assert has_to_be_prepared(FOUR, there, None) is False


def test_a_member_does_not_begin_an_ensemble_of_its_own_beside_the_one_that_answers() -> None:
    alone = Stored((FOUR,), 3)
    members = servers(1, 2, 4)
    for there in (alone, Stored((servers(1)[0].as_role(OBSERVER), FOUR), 3), Stored((FOUR,), 12)):
        with pytest.raises(InvalidRequest, match=OF_ITS_OWN) as refused:
            has_to_be_prepared(FOUR, there, ensemble(*members))
        assert "`epochlake metadata reconfigure --coordination 1 2`" in (refused.value.hint or "")
    assert has_to_be_prepared(FOUR, alone, ensemble(FOUR)) is False
    assert has_to_be_prepared(FOUR, alone, None) is False


def test_the_data_of_an_ensemble_in_whose_place_another_was_set_up_is_refused() -> None:
    there = Stored(tuple(servers(1, 2, 4)), 10)
    with pytest.raises(InvalidRequest, match="server 4 has the data of an ensemble in whose place this one was set up"):
        has_to_be_prepared(FOUR, there, ensemble(*servers(1, 2)))
    assert has_to_be_prepared(FOUR, there, ensemble(*servers(1, 2), version=10)) is True


def test_a_server_that_has_lost_what_it_stored_does_not_vote() -> None:
    there = Stored(tuple(servers(1, 2, 4)), 9, emptied=True)
    members = ensemble(servers(1)[0], servers(2)[0].as_role(OBSERVER), FOUR)
    assert has_to_be_prepared(FOUR, there, members) is True
    partly = Stored(tuple(servers(1, 2, 4)), 9, emptied=True, remains=True)
    with pytest.raises(InvalidRequest, match=GONE) as refused:
        has_to_be_prepared(FOUR, partly, members)
    assert "`epochlake metadata reconfigure --coordination 1 2:observer`" in (refused.value.hint or "")
    with pytest.raises(InvalidRequest, match=LOST):
        has_to_be_prepared(FOUR, there, None)
    assert has_to_be_prepared(FOUR, there, ensemble(*servers(1, 2))) is True


def test_a_directory_tells_whether_what_its_server_stored_is_gone(tmp_path: Path) -> None:
    members = ensemble(*servers(1, 2, 4))
    write_server_files(STORAGE, str(tmp_path), FOUR, members.servers)
    assert stored(STORAGE, str(tmp_path)) == Stored(members.servers)
    with pytest.raises(InvalidRequest, match=GONE):
        require_data(STORAGE, str(tmp_path), FOUR, members)
    require_data(STORAGE, str(tmp_path), FOUR, ensemble(*servers(1, 2)))
    place = tmp_path / "data" / "version-2"
    # Killed before it had stored anything: it has promised nothing.
    place.mkdir()
    assert not stored(STORAGE, str(tmp_path)).emptied
    for name in ("snapshot.0", "log.100000001", "currentEpoch", "acceptedEpoch"):
        (place / name).write_bytes(b"1")
    assert not stored(STORAGE, str(tmp_path)).emptied
    require_data(STORAGE, str(tmp_path), FOUR, members)
    (place / "snapshot.0").unlink()
    assert stored(STORAGE, str(tmp_path)).emptied
    assert stored(STORAGE, str(tmp_path)).remains
    (place / "log.100000001").unlink()
    assert stored(STORAGE, str(tmp_path)).emptied
    assert not stored(STORAGE, str(tmp_path)).remains
    for name in ("currentEpoch", "acceptedEpoch"):
        (place / name).unlink()
    place.rmdir()
    assert not stored(STORAGE, str(tmp_path)).emptied
    # All of it is gone, and the settings still tell that it has served.
    settings = (tmp_path / STATIC).read_text(encoding="latin-1")
    (tmp_path / STATIC).write_text(settings.replace(DYNAMIC, f"{DYNAMIC}.10000000a"), encoding="latin-1")
    (tmp_path / f"{DYNAMIC}.10000000a").write_bytes((tmp_path / DYNAMIC).read_bytes())
    assert stored(STORAGE, str(tmp_path)) == Stored(members.servers, 0x10000000A, emptied=True)
    (tmp_path / "data" / "myid").unlink()
    assert stored(STORAGE, str(tmp_path)) == Stored(emptied=True)
    # Whoever prepares it anew, for an ensemble that is set up anew, has said so.
    write_server_files(STORAGE, str(tmp_path), FOUR, ())
    assert stored(STORAGE, str(tmp_path)) == Stored((FOUR,))


def test_who_is_prepared_for_an_ensemble_that_answers_elects_nobody_without_data(tmp_path: Path) -> None:
    settings, trusted = tmp_path / STATIC, tmp_path / "data" / "initialize"
    for follows in (False, True, True, False):
        trusted.parent.mkdir(exist_ok=True)
        trusted.touch()
        write_server_files(STORAGE, str(tmp_path), FOUR, servers(1, 2), follows=follows)
        said = settings.read_text(encoding="latin-1").splitlines()
        assert said.count("db.autocreate=false") == follows
        assert sum(line.startswith("dynamicConfigFile=") for line in said) == 1
        assert trusted.exists() is not follows


def test_a_member_begins_as_what_the_ensemble_says_that_it_is(tmp_path: Path) -> None:
    observes = FOUR.as_role(OBSERVER)
    write_server_files(STORAGE, str(tmp_path), FOUR, [*servers(1, 2), observes])
    assert stored(STORAGE, str(tmp_path)).servers == (*servers(1, 2), observes)


@pytest.mark.parametrize("operator", ["super", "super:", ":secret", ":"])
def test_an_operator_without_a_password_is_refused_before_anything_is_written(tmp_path: Path, operator: str) -> None:
    with pytest.raises(ConfigurationError, match="operator is no name with a password"):
        write_server_files(STORAGE, str(tmp_path / "place"), FOUR, (), operator)
    assert not (tmp_path / "place").exists()


def test_a_directory_tells_whom_its_server_knows_also_when_zookeeper_has_written_that(tmp_path: Path) -> None:
    place = tmp_path / "größer"
    assert stored(STORAGE, str(place)) == Stored()
    write_server_files(STORAGE, str(place), FOUR, servers(1, 2))
    assert stored(STORAGE, str(place)).servers == (*servers(1, 2), FOUR)
    newer = place / f"{DYNAMIC}.100000003"
    newer.write_text("".join(f"{one}\n" for one in servers(2, 5)))
    settings = (place / STATIC).read_text(encoding="latin-1").replace(DYNAMIC, newer.name)
    (place / STATIC).write_text(settings, encoding="latin-1")
    assert stored(STORAGE, str(place)).servers == tuple(servers(2, 5))
    for rotten in ("server.4=\n", "version=x\n", ""):
        newer.write_text(rotten)
        assert stored(STORAGE, str(place)).servers == ()
    newer.unlink()
    assert stored(STORAGE, str(place)).servers == ()
    (place / "data" / "myid").write_text("")
    assert stored(STORAGE, str(place)).servers is None


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
