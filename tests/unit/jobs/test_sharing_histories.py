"""Histories of what compaction makes for several ranges: one file of what neighbours have."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from epochlake.jobs import campaign
from epochlake.jobs.testing import sharing_themes
from epochlake.jobs.testing.row_drawing import row_scenario
from epochlake.jobs.testing.row_themes import BY_NAME
from epochlake.jobs.testing.themes import KEYS, SHARED, SHELVED, WIDE
from epochlake.jobs.upkeep import compaction
from epochlake.jobs.upkeep.compacting import Chosen

THEMES = sorted(name for name, theme in BY_NAME.items() if theme in sharing_themes.BY_NAME_ONLY)

BRIEF = BY_NAME["neighbours"]._replace(
    seconds=(2.0, 2.2),
    operations=("balance",),
    upkeep=("repair",),
    tablets=(8,),
    accesses=("read", "new pipeline"),
    sights=("all",),
    operator_paces=(30.0,),
    pipelines=(1, 1),
    lying=(),
    append_only=0.0,
    hasty=1.0,
    followed=0.0,
)
"""The same in little time: nothing goes wrong, and deletes are forgotten as soon as that is allowed."""

SHOWS = 1
"""A seed of it in which ranges share what is made of their files all the time, beside wide rows that are deleted."""


@pytest.mark.parametrize("name", THEMES)
def test_ranges_have_a_large_file_first_and_small_ones_that_are_put_together_all_the_time(name: str) -> None:
    for seed in range(20):
        one = row_scenario(seed, theme=BY_NAME[name])
        assert one.settings.delta
        assert one.settings.shared_file_bytes
        parts = {part.name: part for part in one.parts}
        wide = parts["pipeline9"].threads[0][0]
        assert (wide.kind, wide.keys, wide.level) == (WIDE, tuple(range(KEYS)), "ALL")
        assert {operation.kind for operation in parts["upkeep9"].threads[0]} == {SHARED}
        assert not parts["pipeline9"].blind


def test_tables_whose_ranges_share_files_are_dropped_and_come_back() -> None:
    drawn = [row_scenario(seed, theme=BY_NAME["neighbours"]) for seed in range(20)]
    assert SHELVED in {one.kind for each in drawn for part in each.parts for one in part.threads[0]}


def test_a_history_in_which_neighbouring_ranges_share_files_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    as_one = compaction.as_one

    def counted(group: Sequence[Chosen]) -> Chosen:
        groups.append(len(group))
        return as_one(group)

    monkeypatch.setattr(compaction, "as_one", counted)
    assert campaign.run(row_scenario(SHOWS, theme=BRIEF)).violations == []
    assert sum(count > 1 for count in groups) > 1


def test_a_history_notices_that_deletes_are_forgotten_with_what_is_beside_what_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_one = compaction.as_one

    def as_if_whole(group: Sequence[Chosen]) -> Chosen:
        return as_one(group) if len(group) == 1 else msgspec.structs.replace(as_one(group), whole=True)

    monkeypatch.setattr(compaction, "as_one", as_if_whole)
    assert campaign.run(row_scenario(SHOWS, theme=BRIEF)).violations
