"""A component of the metadata is one entry in one table: what is walked over it has the component from then on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from epochlake.metastore.errors import UnknownFormat
from epochlake.metastore.following.snapshot_format import FORMAT, decode_snapshot, encode_snapshot, format_of
from epochlake.metastore.log.entry import Position
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.components.component import Component, Facts, components_of
from epochlake.metastore.metadata.differences import WHOLE, Difference, by_key, diff
from epochlake.metastore.metadata.digest import digest_of
from epochlake.metastore.metadata.events import SwitchBalancing
from epochlake.metastore.tables.metadata import PARTS, parts_of
from epochlake.metastore.tables.rows import rows_of

from tests.support import golden
from tests.support.histories import ring_cluster

KNOWN = max(component.since for component in components_of(ClusterMetadata).values())
"""The newest format of snapshots that there is."""

WITHOUT_TABLES = {"identity", "switches", "last_snapshot_epoch", "dropped"}
"""Components that are a line of `epochlake status`, or what `table list --dropped` shows."""


class Quota(msgspec.Struct, frozen=True):
    name: str
    limit: int
    epoch: int = 0


class StoredQuotas(msgspec.Struct, frozen=True):
    quotas: list[Quota]


def quotas_by_name(metadata: WithQuotas) -> pa.Table:
    schema = pa.schema([("keyspace", pa.string()), ("limit", pa.int64())])
    return rows_of(schema, ((name, quota.limit) for name, quota in sorted(metadata.quotas.items())))


def differences_of_quotas(before: Any, after: Any) -> Iterator[Difference]:
    return by_key("quota", before.quotas, after.quotas)


QUOTAS: Component[Mapping[str, Quota]] = Component(
    empty={},
    since=KNOWN + 1,
    stored=StoredQuotas,
    encode=lambda quotas: StoredQuotas([quotas[name] for name in sorted(quotas)]),
    decode=lambda stored, _: {quota.name: quota for quota in stored.quotas},
    last_change=lambda quotas: max((quota.epoch for quota in quotas.values()), default=0),
    differences=differences_of_quotas,
    tables=(quotas_by_name,),  # type: ignore[arg-type]  # made for this class of metadata only
)


class WithQuotas(ClusterMetadata, frozen=True):
    """The metadata with a component that it does not have: one entry."""

    quotas: Annotated[Mapping[str, Quota], QUOTAS]


class StoredHeat(msgspec.Struct, frozen=True):
    heat_epoch: int = 0


class Heat(msgspec.Struct, frozen=True):
    of_tablets: tuple[int, ...] = ()
    epoch: int = 0


HEAT: Component[Heat] = Component(
    empty=Heat(),
    since=KNOWN + 2,
    stored=StoredHeat,
    encode=lambda heat: StoredHeat(heat.epoch),
    arrays=lambda heat: pa.record_batch([pa.array(heat.of_tablets, pa.int64())], names=["heat"]),
    decode=lambda stored, table: Heat(() if table is None else tuple(table["heat"].to_pylist()), stored.heat_epoch),
    last_change=lambda heat: heat.epoch,
    facts=lambda heat: Facts({}, (np.array(heat.of_tablets, "<i8").tobytes(),), heat.epoch),
    differences=lambda before, after: (),
)


class WithHeat(WithQuotas, frozen=True):
    heat: Annotated[Heat, HEAT]


def seen_as(kind: type[ClusterMetadata], metadata: ClusterMetadata, **own: Any) -> Any:
    fields = {name: getattr(metadata, name) for name in metadata.__struct_fields__}
    return msgspec.structs.replace(kind.empty(), **{**fields, **own})


AIR = {"air": Quota("air", 9, 5)}
AT_5 = Position(5, "5", "")


# One entry


def test_a_new_component_is_in_the_empty_metadata_and_lives_through_events() -> None:
    metadata = msgspec.structs.replace(WithQuotas.empty(), quotas=AIR)
    assert WithQuotas.empty().quotas == {}
    applied = metadata.apply(SwitchBalancing(on=False), "1")
    assert isinstance(applied, WithQuotas)
    assert applied.quotas is AIR


def test_a_new_component_that_is_empty_changes_no_byte_and_no_digest() -> None:
    plain = ring_cluster()
    metadata = seen_as(WithQuotas, plain)
    assert encode_snapshot(metadata, AT_5) == encode_snapshot(plain, AT_5)
    assert digest_of(metadata) == digest_of(plain)


def test_a_new_component_is_in_snapshots_of_the_format_that_brought_it() -> None:
    metadata = seen_as(WithQuotas, ring_cluster(), quotas=AIR, epoch=5, state_id="5")
    data = encode_snapshot(metadata, AT_5)
    assert format_of(data) == KNOWN + 1
    assert decode_snapshot(data, WithQuotas) == (metadata, AT_5)
    with pytest.raises(UnknownFormat, match=f"format {KNOWN + 1}, this version knows formats 1 to {KNOWN}"):
        decode_snapshot(data)


@pytest.mark.parametrize("heat", [Heat(), Heat((3, 1, 2), 4)], ids=["without arrays", "with arrays"])
@pytest.mark.parametrize("quotas", [{}, AIR], ids=["none", "one"])
def test_arrays_of_a_new_component_are_a_stream_of_their_own(heat: Heat, quotas: dict[str, Quota]) -> None:
    metadata = seen_as(WithHeat, ring_cluster(), quotas=quotas, heat=heat, epoch=5, state_id="5")
    data = encode_snapshot(metadata, AT_5)
    assert format_of(data) == (KNOWN + 2 if heat.epoch else KNOWN + 1 if quotas else FORMAT)
    assert decode_snapshot(data, WithHeat) == (metadata, AT_5)
    assert encode_snapshot(metadata, AT_5) == data


@pytest.mark.parametrize("generation", golden.generations())
def test_a_snapshot_from_before_a_component_has_it_empty(generation: int) -> None:
    data = golden.snapshot_file(generation).read_bytes()
    metadata, position = decode_snapshot(data, WithHeat)
    assert isinstance(metadata, WithHeat)
    assert (metadata.quotas, metadata.heat) == ({}, Heat())
    assert metadata == seen_as(WithHeat, decode_snapshot(data)[0])
    assert digest_of(metadata) == digest_of(decode_snapshot(data)[0])
    assert position == decode_snapshot(data)[1]


def test_a_digest_covers_a_new_component_and_all_that_it_says() -> None:
    plain = ring_cluster()
    states: list[dict[str, Any]] = [
        {},
        {"quotas": AIR},
        {"quotas": {"air": Quota("air", 8, 5)}},
        {"heat": Heat((1,), 4)},
        {"heat": Heat((2,), 4)},
        {"heat": Heat((1,), 5)},
    ]
    digests = {digest_of(seen_as(WithHeat, plain, **state)) for state in states}
    assert len(digests) == len(states)


def test_a_new_component_is_among_the_differences_the_tables_and_the_last_changes() -> None:
    before = seen_as(WithQuotas, ring_cluster())
    after = msgspec.structs.replace(before, quotas=AIR)
    assert diff(before, after) == [Difference("quota", "air", WHOLE, None, {"name": "air", "limit": 9})]
    assert diff(after, after) == []
    parts = parts_of(WithQuotas)
    assert set(parts) - set(PARTS) == {"quotas_by_name"}
    assert parts["quotas_by_name"](after).to_pylist() == [{"keyspace": "air", "limit": 9}]
    assert (before.last_changes()["quotas"], after.last_changes()["quotas"]) == (0, 5)


def test_a_component_with_arrays_has_to_say_what_its_digest_is_made_of() -> None:
    with pytest.raises(TypeError, match="has to give its facts"):
        Component(**{**vars(HEAT), "facts": None})


# The table of today


def test_every_field_of_the_metadata_is_a_component_but_where_it_is_in_the_history() -> None:
    hints = get_type_hints(ClusterMetadata)
    assert set(ClusterMetadata.__struct_fields__) - set(components_of(ClusterMetadata)) == {"epoch", "state_id"}
    for name, component in components_of(ClusterMetadata).items():
        kind = get_origin(hints[name]) or hints[name]
        assert isinstance(component.empty, kind), name
        assert component.last_change(component.empty) == 0, name


def test_no_two_components_have_a_key_of_a_snapshot_or_a_digest_in_common() -> None:
    components = components_of(WithHeat).items()
    stored = [field for _, one in components for field in one.stored.__struct_fields__]
    facts = [key for name, one in components for key in one.facts_of(name, one.empty).small]
    assert len({*stored, "format", "position"}) == len(stored) + 2
    assert len({*facts, "epochs"}) == len(facts) + 1


def test_every_component_has_a_table_unless_it_is_a_line_of_the_status() -> None:
    without = {name for name, component in components_of(ClusterMetadata).items() if not component.tables}
    assert without == WITHOUT_TABLES
