"""The list of mutations is true to the code, and what came of them is kept, gone on with and shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign_mutations import AREAS, MUTATIONS, Mutation
from tests.campaign_mutations import __main__ as script
from tests.campaign_mutations.__main__ import Result, as_page, campaign_digest, digest_of

LEAST = {
    "commit protocol and offers": 12,
    "storage of the log": 10,
    "gate, writing": 12,
    "gate, reading": 5,
    "coordinator and moves": 10,
    "repair, compaction, vacuum, space": 8,
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
    assert set(mutation.kinds) <= {"log", "rows", "log tables", "rows tables"}
    assert mutation.kinds


def test_names_of_mutations_are_unique_and_no_two_break_the_same() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({digest_of(mutation) for mutation in MUTATIONS}) == len(MUTATIONS)


def test_each_area_has_its_mutations() -> None:
    assert {area: len(AREAS[area]) >= least for area, least in LEAST.items()} == dict.fromkeys(AREAS, True)


class Campaign:
    """Stands for the campaign: the seed fails that is told; it says how much was asked of it."""

    def __init__(self, failing: int | None, code: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._failing = failing
        self._code = code

    def __call__(self, copy: Path, kind: str, first: int, count: int, seconds: float | None) -> tuple[str, int]:
        self.asked.append((first, count))
        failed = self._failing is not None and first <= self._failing < first + count
        said = f"{kind} history {self._failing}: a row is lost\n{kind} history 999: another one\n" if failed else ""
        run = self._failing - first + 1 if failed and self._failing is not None else count
        code = (4 if failed else 0) if self._code is None else self._code
        return f"{said}{run} {kind} histories, {1000 * run:,} steps, 50 a second, 1 failed\n", code


def run(monkeypatch: pytest.MonkeyPatch, where: Path, campaign: Campaign, *arguments: str) -> int:
    monkeypatch.setattr(script, "_campaign", campaign)
    monkeypatch.setattr(script, "_copy_to", lambda copy: (copy / FIRST.path).parent.mkdir(parents=True))
    return script.main([FIRST.name, "--results", str(where / "results.json"), *arguments])


def test_blocks_grow_until_a_history_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    campaign = Campaign(failing=60)
    assert run(monkeypatch, tmp_path, campaign) == 0
    assert campaign.asked == [(1, 16), (17, 32), (49, 64)]
    page = (tmp_path / "results.md").read_text()
    assert f"| {FIRST.name} | {FIRST.why} | 60 of log | a row is lost | 60,000 |" in page
    assert run(monkeypatch, tmp_path, again := Campaign(failing=60)) == 0
    assert again.asked == [], "known already"
    assert run(monkeypatch, tmp_path, again, "--again") == 0
    assert again.asked == campaign.asked


def test_what_was_not_found_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, first := Campaign(failing=90), "--histories", "40") == 1
    assert first.asked == [(1, 16), (17, 24)]
    assert run(monkeypatch, tmp_path, same := Campaign(failing=90), "--histories", "40") == 1
    assert same.asked == []
    assert run(monkeypatch, tmp_path, more := Campaign(failing=90), "--histories", "100") == 0
    assert more.asked == [(41, 16), (57, 32), (89, 12)]


def test_a_mutation_that_does_not_run_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, Campaign(failing=None, code=1)) == 1
    assert "does not run" in (tmp_path / "results.md").read_text()


def test_a_campaign_that_does_not_say_what_it_ran_has_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = Campaign(failing=None)
    monkeypatch.setattr(Campaign, "__call__", lambda *_: ("nothing that is known\n", 0))
    assert run(monkeypatch, tmp_path, silent) == 1
    assert "does not run" in (tmp_path / "results.md").read_text()


def test_results_are_of_the_text_and_of_the_campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, tmp_path, Campaign(failing=1))
    assert digest_of(FIRST) != digest_of(FIRST._replace(broken="pass\n"))
    assert digest_of(FIRST) == digest_of(FIRST._replace(why="said otherwise"))
    assert len(campaign_digest()) == 16
    monkeypatch.setattr(script, "campaign_digest", lambda: "another one")
    run(monkeypatch, tmp_path, campaign := Campaign(failing=1))
    assert campaign.asked == [(1, 16)]


def test_an_unknown_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["no such mutation"]) == 2
    assert FIRST.name in capsys.readouterr().out


def test_the_page_has_every_mutation() -> None:
    page = as_page([Result(FIRST.name, "not found", "", "", histories=400, steps=12345, seconds=6.7)])
    assert "not found in 400" in page
    assert "12,345" in page
    assert all(f"| {mutation.name} |" in page for mutation in MUTATIONS)
