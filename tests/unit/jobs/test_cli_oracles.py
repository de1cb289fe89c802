"""All oracle cases through `epochlake --output json placement simulate FILE.json`, answers taken out beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.unit.placement.ring_oracles import PLACEMENT_FILES, TRANSITION_FILES, document, stripped
from tests.unit.placement.test_ring_simulate import comparable


def answered(line: CommandLine, folder: Path, name: str) -> list[tuple[dict, dict]]:
    """The cases of a file, as the oracle has them and as the command answers them."""
    source = document(name)
    file = folder / f"{name}.json"
    file.write_text(json.dumps({**source, "cases": [stripped(case) for case in source["cases"]]}))
    told = line.json("placement", "simulate", file)
    answer = told.json
    refused = [step for case in answer["cases"] for step in case.get("steps", ()) if step["result"] != "success"]
    assert told.code == (3 if refused else 0)
    assert {key: answer[key] for key in source if key != "cases"} == {k: v for k, v in source.items() if k != "cases"}
    return list(zip(source["cases"], answer["cases"], strict=True))


@pytest.mark.parametrize("name", PLACEMENT_FILES)
def test_placements_are_filled_in_exactly(empty: CommandLine, tmp_path: Path, name: str) -> None:
    for case, found in answered(empty, tmp_path, name):
        assert found == case, case["name"]


@pytest.mark.parametrize("name", TRANSITION_FILES)
def test_steps_are_filled_in(empty: CommandLine, tmp_path: Path, name: str) -> None:
    for case, found in answered(empty, tmp_path, name):
        if case["name"].startswith("GAP_"):
            results = {(step["op"], step["result"]) for step in found["steps"]}
            assert results == {(0, "success"), (1, "rejected")}, "better than the source: its README asks for it"
            assert (found["settled"], found["final_equivalent_to_fresh_calculation"]) == (True, True)
        else:
            assert comparable(found) == comparable(case), case["name"]


def test_a_case_by_itself_is_answered_as_one(empty: CommandLine, tmp_path: Path) -> None:
    case = document("transitions_hand")["cases"][0]
    (tmp_path / "case.json").write_text(json.dumps(stripped(case)))
    assert comparable(empty.done("placement", "simulate", tmp_path / "case.json")) == comparable(case)
