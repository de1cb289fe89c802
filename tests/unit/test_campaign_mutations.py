"""The list of mutations is true to the code, and what came of them is kept, gone on with and shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.campaign_mutations import AREAS, MUTATIONS, Mutation, pools, records
from tests.campaign_mutations import __main__ as script
from tests.campaign_mutations.mutation import broken_files
from tests.campaign_mutations.pools import Played
from tests.campaign_mutations.records import Result, as_page, campaign_digest, digest_of

LEAST = {
    "commit protocol and offers": 12,
    "storage of the log": 10,
    "log members": 10,
    "gate, writing": 12,
    "gate, reading": 5,
    "gate, merging": 5,
    "coordinator and moves": 10,
    "repair, compaction, vacuum, space": 8,
    "change streams": 5,
    "rows as they were": 3,
    "checks and rollbacks": 3,
    "tables that were dropped": 3,
    "placement and membership": 5,
    "storage layer": 5,
    "rules that stand behind each other": 5,
}
"""So many mutations each area has at least."""

FIRST = MUTATIONS[0]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_breaks_one_place_that_is_there(mutation: Mutation) -> None:
    broken = mutation.broken_files
    assert broken is not None, f"{mutation.path} does not have this exactly once:\n{mutation.whole}"
    for path, text in broken.items():
        compile(text, path, "exec")
    assert set(mutation.kinds) <= {"log", "rows", "merges", "log tables", "rows tables"}
    assert mutation.kinds


def test_names_of_mutations_are_unique_and_no_two_break_the_same() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({digest_of(mutation) for mutation in MUTATIONS}) == len(MUTATIONS)


def test_each_area_has_its_mutations() -> None:
    assert {area: len(AREAS[area]) >= least for area, least in LEAST.items()} == dict.fromkeys(AREAS, True)


class Histories:
    """Stand for the campaign: a history fails by its mutations. It notes what was asked for."""

    def __init__(self, failing: dict[str, int], broken: str = "", together: tuple[set[str], int] | None = None) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._failing = failing
        self._broken = broken
        self._together = together

    def __call__(self, mutations: Sequence[Mutation], kind: str, first: int, count: int) -> Played:
        self.asked.append((len(mutations), first, count))
        names = {mutation.name for mutation in mutations}
        if self._broken in names:
            return Played(0, 0, None, "cannot be imported", broken=True)
        seeds = [seed for name, seed in self._failing.items() if name in names]
        if self._together is not None and self._together[0] <= names:
            seeds.append(self._together[1])
        failed = min((seed for seed in seeds if first <= seed < first + count), default=None)
        if failed is None:
            return Played(count, 1000 * count)
        return Played(failed - first + 1, 1000 * (failed - first + 1), failed, f"a row is lost, seed {failed}")


def run(monkeypatch: pytest.MonkeyPatch, where: Path, histories: Histories, *arguments: str) -> int:
    monkeypatch.setattr(pools, "play", histories)
    names = [mutation.name for mutation in SOME]
    return script.main([*names, "--results", str(where / "results.json"), "--histories", "200", *arguments])


def results(where: Path) -> dict[str, Result]:
    found = msgspec.json.decode((where / "results.json").read_bytes(), type=list[Result])
    return {result.name: result for result in found}


SOME = tuple(mutation for mutation in AREAS["commit protocol and offers"] if mutation.kinds == ("log",))[:7]
A, B, C, D = (mutation.name for mutation in SOME[:4])


def test_those_by_which_a_history_fails_are_told_from_those_beside_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    histories = Histories({A: 3, B: 90, C: 90, D: 201})
    assert run(monkeypatch, tmp_path, histories) == 1
    found = results(tmp_path)
    assert {name for name, result in found.items() if result.state == "found"} == {A, B, C}
    assert (found[A].histories, found[B].histories, found[C].histories) == (3, 90, 90)
    assert found[A].said == "a row is lost, seed 3"
    assert found[D].histories == 200
    page = (tmp_path / "results.md").read_text()
    assert f"| {A} | {SOME[0].why} | 3 of log | a row is lost, seed 3 |" in page
    assert "not found in 200" in page


def test_what_fails_by_two_at_once_is_no_find_of_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, Histories({D: 150}, together=({A, B}, 10))) == 1
    found = results(tmp_path)
    assert {name for name, result in found.items() if result.state == "found"} == {D}
    assert {result.histories for name, result in found.items() if name != D} == {200}


def test_what_is_known_is_not_run_again_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = {A: 3, D: 250}
    run(monkeypatch, tmp_path, Histories(failing))
    run(monkeypatch, tmp_path, same := Histories(failing))
    assert same.asked == []
    run(monkeypatch, tmp_path, more := Histories(failing), "--histories", "300")
    assert min(first for _, first, _ in more.asked) == 201
    assert results(tmp_path)[D].histories == 250
    run(monkeypatch, tmp_path, again := Histories(failing), "--again")
    assert again.asked[0][1] == 1


def test_a_mutation_that_does_not_run_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, Histories({B: 5}, broken=A)) == 1
    found = results(tmp_path)
    assert (found[A].state, found[B].state, found[C].state) == ("does not run", "found", "not found")
    assert "cannot be imported" in (tmp_path / "results.md").read_text()


def test_a_campaign_that_does_not_say_what_it_ran_has_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "campaign", lambda *_: ("nothing that is known\n", 0))
    assert pools.play([FIRST], "log", 1, 5).broken


def test_what_a_campaign_says_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "log history 4: a row is lost\n4 log histories (1 on Delta tables), 4,321 steps, 50 a second, 1 failed\n"
    monkeypatch.setattr(pools, "campaign", lambda *_: (said, 4))
    assert pools.play([FIRST], "log", 1, 5) == Played(4, 4321, 4, "a row is lost")


def test_no_two_of_a_pool_break_the_same_place() -> None:
    whole = pools.pooled("rows", [mutation for mutation in MUTATIONS if "rows" in mutation.kinds], 12)
    assert sum(len(pool.members) for pool in whole) == sum("rows" in mutation.kinds for mutation in MUTATIONS)
    for pool in whole:
        assert broken_files(pool.members) is not None


def test_results_are_of_the_text_and_of_the_campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, tmp_path, Histories({A: 1}))
    assert digest_of(FIRST) != digest_of(FIRST._replace(broken="pass\n"))
    assert digest_of(FIRST) == digest_of(FIRST._replace(why="said otherwise"))
    assert len(campaign_digest()) == 16
    monkeypatch.setattr(records, "campaign_digest", lambda: "another one")
    run(monkeypatch, tmp_path, histories := Histories({A: 1}))
    assert histories.asked[0][1] == 1


def test_an_unknown_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["no such mutation"]) == 2
    assert FIRST.name in capsys.readouterr().out


def test_the_page_has_every_mutation() -> None:
    page = as_page([Result(FIRST.name, "not found", "", "", run={"log": 400})])
    assert "not found in 400" in page
    assert all(f"| {mutation.name} |" in page for mutation in MUTATIONS)
