"""Tokens that are kept in memory: those of whole files, the same that the files have, within what may be kept."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from epochlake.jobs.replicas import superseding
from epochlake.jobs.replicas.known_tokens import KnownTokens
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.schema import WRITTEN_AT
from epochlake.jobs.replicas.sections import Run, Slice
from epochlake.placement.tokens import TOKEN

from tests.support.files import stored_versions
from tests.support.replicas import make_replica

EVERYTHING = (-(2**63), 2**63 - 1)


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaAddress:
    return make_replica(tmp_path, 1)


def read(run: Run, columns: list[str], window: tuple[int, int] = EVERYTHING) -> dict[str, list[object]]:
    rows, positions = superseding._read(run, window, columns, None)
    return {**rows.to_pydict(), "position": positions.tolist()}


def stored(replica: ReplicaAddress, tokens: list[int]) -> Run:
    return stored_versions(replica, [(token, token, 7, False) for token in tokens])


def kept(run: Run) -> list[int] | None:
    tokens = run.copy.address.storage.kept(KnownTokens).get(run.copy.file)
    return None if tokens is None else tokens.tolist()


@pytest.mark.parametrize("columns", [[TOKEN], [TOKEN, "id"], ["id", TOKEN, WRITTEN_AT]])
def test_rows_are_the_same_when_their_tokens_are_kept(replica: ReplicaAddress, columns: list[str], seed: int) -> None:
    tokens = sorted(random.Random(seed).sample(range(-500, 500), 200))
    run = stored(replica, tokens)
    first = read(run, columns)
    assert kept(run) == tokens
    assert read(run, columns) == first
    assert first[TOKEN] == tokens
    assert first["position"] == list(range(200))
    assert list(first) == [*columns, "position"]


def test_a_file_whose_tokens_are_kept_is_not_opened_for_them(replica: ReplicaAddress) -> None:
    run = stored(replica, [1, 2, 3])
    piece = Slice(*EVERYTHING, (run, stored(replica, [2, 3, 4])))
    told = superseding.told((), piece)
    with patch.object(superseding, "rows_of_run", side_effect=AssertionError("a file was opened")):
        again = superseding.told((), piece)
    assert [(one.file, one.positions.tolist()) for one in again] == [(one.file, one.positions.tolist()) for one in told]
    assert sum(one.count for one in told) == 2


@pytest.mark.parametrize("window", [(2, 9), (-9, 2)])
def test_a_part_of_a_file_is_not_kept_and_not_taken_for_all_of_it(
    replica: ReplicaAddress, window: tuple[int, int]
) -> None:
    run = stored(replica, [1, 2, 3])
    part = read(run, [TOKEN], window)
    assert kept(run) is None
    read(run, [TOKEN])
    assert read(run, [TOKEN], window) == part
    assert part[TOKEN] == [token for token in (1, 2, 3) if window[0] <= token <= window[1]]


def test_what_was_asked_for_last_stays_within_the_limit(replica: ReplicaAddress) -> None:
    runs = [stored(replica, [number, number + 1]) for number in range(3)]
    files = [run.copy.file for run in runs]
    known = KnownTokens(most=2 * 16)
    for file in files[:2]:
        known.put(file, np.array([1, 2]))
    assert known.get(files[0]) is not None
    known.put(files[2], np.array([3, 4]))
    known.put(files[2], np.array([3, 4]))
    assert [known.get(file) is not None for file in files] == [True, False, True]


def test_nobody_changes_what_is_kept_and_what_is_too_large_or_incomplete_is_not(replica: ReplicaAddress) -> None:
    file = stored(replica, [1, 2]).copy.file
    known, tokens = KnownTokens(), np.array([1, 2])
    known.put(file, np.array([1]))
    KnownTokens(most=15).put(file, tokens)
    assert known.get(file) is None
    known.put(file, tokens)
    tokens[0] = 9
    found = known.get(file)
    assert found is not None
    assert found.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 3
