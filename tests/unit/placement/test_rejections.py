"""The list of rejection codes: complete, used, unambiguous, and the page that is made of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest
from epochlake.metastore.errors import Rejected
from epochlake.placement.rejections import Code, document

ROOT = Path(__file__).parents[3]
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("placement", "metastore", "jobs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "rejections.py"
)


@pytest.mark.parametrize("code", Code)
def test_each_code_is_raised_somewhere(code: Code) -> None:
    assert f"Code.{code.name}" in CODE
    assert code.name == code.upper().replace("-", "_")


def test_no_two_codes_have_one_meaning() -> None:
    assert len({code.meaning for code in Code}) == len(Code)


def test_a_code_is_a_text_to_programs() -> None:
    error = Rejected(Code.NODE_EXISTS, "there is a node 'n1'")
    assert error.code == "node-exists"
    assert str(error) == "rejected (node-exists): there is a node 'n1'"
    assert msgspec.json.encode({"code": error.code}) == b'{"code":"node-exists"}'
    assert pickle.loads(pickle.dumps(Code.NODE_EXISTS)) is Code.NODE_EXISTS


def test_the_page_is_that_of_the_list() -> None:
    assert (ROOT / "docs" / "rejections.md").read_text(encoding="utf-8") == document(), (
        "run `python -m epochlake.placement.rejections > docs/rejections.md`"
    )
