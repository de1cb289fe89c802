"""Options of the data source that cannot be meant are refused with the one that was."""

from __future__ import annotations

import pytest
from epochlake.jobs.datasource.options import ReadOptions, read_options, write_options
from epochlake.placement.errors import InvalidRequest

READS = [
    ({"epoch": "0"}, "system.nodes", "is '0', which is no epoch. Give a whole number; the first epoch is 1"),
    ({"epoch": "-1"}, "system.nodes", "the option 'epoch' is '-1', which is no epoch"),
    ({"epoch": "1.5"}, "system.nodes", "which is no epoch"),
    ({"epoch": ""}, "system.nodes", "which is no epoch"),
    ({"epoch": "٣"}, "system.nodes", "which is no epoch"),
    ({"epoch": "9" * 5_000}, "system.nodes", "which is no epoch"),
    ({"startingEpoch": "-1"}, "system.log", "the option 'startingEpoch' is '-1'"),
    ({"changes": "true", "after": str(1 << 63)}, "air.flights", "which is no position"),
    ({"changes": "true", "after": "0"}, "air.flights", "which is no position. Give a whole number from 1 on"),
    ({"changes": "true", "upTo": "0"}, "air.flights", "the option 'upTo' is '0', which is no position"),
    ({"changes": "true", "reader": "a b"}, "air.flights", "a reader cannot be called 'a b'"),
    ({"batch": "x"}, "air.flights", "the option 'batch' is for a write, and this is a read. Leave it out"),
    ({"replacewhere": "x"}, "air.flights", "the option 'replaceWhere' is for a write"),
    ({"timestamp": "x"}, "air.flights", "has no option 'timestamp'. Did you mean 'timestampAsOf'?"),
    (
        {"something": "x"},
        "air.flights",
        "datacenter, columns, where, keys, timestampAsOf, epoch, startingEpoch, changes, after, upTo",
    ),
    ({"upto": "1"}, "air.flights", "the option 'upTo' is for changes"),
    ({"generation": "1", "stream": "0"}, "air.flights", "the option 'generation' is for changes"),
    ({"changes": "true", "generation": "0", "stream": "0"}, "air.flights", "the first generation is 1"),
    ({"changes": "true", "generation": "4@nosuchnode", "stream": "0"}, "air.flights", "which is no number of a gener"),
    ({"changes": "true", "generation": "1", "stream": "-1"}, "air.flights", "which is no number of a stream"),
    ({"changes": "true", "generation": "1", "stream": ""}, "air.flights", "the first stream is 0"),
    ({"changes": "true", "generation": "1"}, "air.flights", "without the option 'stream': a stream is one of a gen"),
    ({"changes": "true", "stream": "0"}, "air.flights", "without the option 'generation'"),
    ({"timestampasof": "2026-01-01T00:00:00Z"}, "system.nodes", "the option 'timestampAsOf' is for tables of rows"),
    ({"columns": ""}, "air.flights", "the option 'columns' is '', which leaves a name empty. Give names with commas"),
    ({"columns": "id,,day"}, "air.flights", "leaves a name empty"),
    ({"paths": '["air.a", "air.b"]'}, "", "a read is of one table. Load each"),
]


@pytest.mark.parametrize(("options", "table", "said"), READS, ids=[str(options)[:40] for options, _, _ in READS])
def test_what_a_read_cannot_mean_is_refused_before_a_cluster_is_opened(
    options: dict[str, str], table: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_options({"path": table} | options)
    assert said in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epoch": "3"}, "the option 'epoch' is for a read, and this is a write"),
        ({"batches": "x"}, "Did you mean 'batch'?"),
        ({"replacewher": "x"}, "Did you mean 'replaceWhere'?"),
        ({"mergeSchema": "true"}, "Its options: conf, root, consistency, datacenter, batch, delete, replaceWhere"),
    ],
)
def test_what_a_write_cannot_mean_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        write_options({"path": "air.flights"} | options)
    assert said in str(refused.value)


def test_blanks_and_zeros_before_a_number_are_nothing() -> None:
    assert read_options({"path": "system.nodes", "EPOCH": " 007 "}).epoch == 7
    assert read_options({"path": "system.log", "startingEpoch": "0"}).starting_epoch == 0


def test_settings_that_no_view_has_are_no_secret_error_of_a_parser() -> None:
    with pytest.raises(InvalidRequest, match=r"the option 'settings', .* cannot be read"):
        ReadOptions("air.flights", settings="x").open()
