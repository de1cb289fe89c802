"""Rows that many tasks have spilled are one stream in token order, however they were dealt out."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from epochlake.jobs.gate import spilled_rows
from epochlake.jobs.gate.arrow_rows import rows_to_write
from epochlake.jobs.gate.row_digests import RowDigest, digested_columns
from epochlake.jobs.gate.spilled_rows import KEPT_MS, SpilledRows, forget_old_spills, forget_spills, spill
from epochlake.metastore.metadata.model import Column, Table
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.tokens import TOKEN

from tests.support.storages import STORAGE

TABLE = Table(
    "t", "air", "flights", (Column("id", "bigint", False), Column("note", "string", True)), ("id",), append_only=False
)

DIGEST = RowDigest(digested_columns(TABLE), TABLE, TABLE)


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_spills_are_merged_in_token_order_and_hold_every_row_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(spilled_rows, "RUN_ROWS", 40)
    monkeypatch.setattr(spilled_rows, "BATCH_ROWS", 7)
    ids = [dice.randrange(300) for _ in range(500)]  # tokens that come in several spills stay together
    rows = pa.table({"id": ids, "note": [str(number) for number in ids]})
    dealt: list[list[pa.RecordBatch]] = [[] for _ in range(tasks)]
    for batch in rows.to_batches(max_chunksize=23):
        dealt[dice.randrange(tasks)].append(batch)
    spills = [
        one
        for number, batches in enumerate(dealt)
        for one in spill(STORAGE, str(tmp_path), f"{number}", TABLE, batches)
    ]
    assert max(one.rows for one in spills) <= 40 + 23
    held = SpilledRows(STORAGE, spills)
    merged = pa.Table.from_batches(held.batches())
    tokens = merged[TOKEN].to_numpy()
    assert (np.diff(tokens) >= 0).all()
    assert sorted(merged["id"].to_pylist()) == sorted(ids)
    assert held.counted(DIGEST) == rows_to_write(rows, TABLE).counted(DIGEST)
    low, high = int(np.quantile(tokens, 0.3)), int(np.quantile(tokens, 0.6))
    assert held.within([(low, high)]).counted(DIGEST) == rows_to_write(rows, TABLE).within([(low, high)]).counted(
        DIGEST
    )
    assert held.within([(1, 0)]).counted(DIGEST).count == 0
    forget_spills(STORAGE, str(tmp_path))
    assert not tmp_path.exists()


def test_rows_that_do_not_fit_are_refused_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no column tail"):
        spill(STORAGE, str(tmp_path), "0", TABLE, pa.table({"id": [1], "tail": ["x"]}).to_batches())
    [one] = spill(STORAGE, str(tmp_path), "0", TABLE, pa.table({"id": [1], "tail": ["x"]}).to_batches(), deleted=True)
    assert one.rows == 1
    assert spill(STORAGE, str(tmp_path), "1", TABLE, []) == []


def test_old_spills_are_those_of_which_nothing_was_stored_for_a_week(tmp_path: Path) -> None:
    batches = pa.table({"id": [1], "note": ["x"]}).to_batches()
    for write in ("one", "two"):
        (tmp_path / "spills" / write).mkdir(parents=True)
        spill(STORAGE, str(tmp_path / "spills" / write), "0", TABLE, batches)
    now = int((tmp_path / "spills/one/0-0.arrow").stat().st_mtime * 1000)
    forget_old_spills(STORAGE, str(tmp_path / "spills"), now + KEPT_MS - 60_000)
    assert len([*(tmp_path / "spills").rglob("*.arrow")]) == 2
    forget_old_spills(STORAGE, str(tmp_path / "spills"), now + KEPT_MS + 60_000)
    assert not [*(tmp_path / "spills").rglob("*.arrow")]
    forget_old_spills(STORAGE, str(tmp_path / "nowhere"), now)
