"""What differs between two versions of the cluster metadata, for people and programs.

Each component finds its own differences, with the functions here. An unchanged part costs nothing: what is the same
object is not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from epochlake.metastore.metadata.components.component import components_of

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata

WHOLE = ""
"""The `field` of a difference in which the whole thing appears (`before` is None) or goes (`after` is None)."""

_BOOKKEEPING = frozenset({"epoch", "state_id"})
"""Fields that follow from a difference and are none."""


class Difference(msgspec.Struct, frozen=True):
    """One difference. `component` is the kind of the thing (node, tablet, request, …), `name` which of them, `field`
    what of it.

    `before` and `after` are plain values as JSON has them. Replicas are given as `node/volume`, those of a ring range
    as nodes. Tablets are named `keyspace.table/k-i`, tablet i of 2^k; ring ranges `keyspace/(start, end]`.
    """

    component: str
    name: str
    field: str
    before: Any
    after: Any


def diff(before: ClusterMetadata, after: ClusterMetadata) -> list[Difference]:
    """What was added, removed or changed from `before` to `after`, which may be in either order.

    By component in the order of `ClusterMetadata`, then by number or name. Empty when the two say the same, whatever
    their epochs.
    """
    components = components_of(type(after)).values()
    return [found for component in components for found in component.differences(before, after)]


def later(before: ClusterMetadata, after: ClusterMetadata) -> ClusterMetadata:
    """The one of the later epoch: it knows the nodes of the other one too, those that were unregistered as well."""
    return max(before, after, key=lambda metadata: metadata.epoch)


def _plain(thing: Any) -> Any:
    """A thing as JSON has it: lists, not tuples; null for what was not said."""
    if thing is msgspec.UNSET:
        return None
    return msgspec.json.decode(msgspec.json.encode(thing))


def _plain_struct(thing: Any, without: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in _plain(thing).items() if name not in _BOOKKEEPING | without}


def fields(
    component: str, name: str, before: Any, after: Any, without: frozenset[str] = frozenset()
) -> Iterator[Difference]:
    """The fields in which two structs of one type differ."""
    if before is after:
        return
    for field in before.__struct_fields__:
        old, new = getattr(before, field), getattr(after, field)
        if field not in _BOOKKEEPING | without and old != new:
            yield Difference(component, name, field, _plain(old), _plain(new))


def by_key(component: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Things that are named by the key under which they are kept."""
    if before is after:
        return
    for name in sorted({*before, *after}):
        yield from one(component, name, before.get(name), after.get(name))


def one(
    component: str, name: str, old: Any | None, new: Any | None, without: frozenset[str] = frozenset()
) -> Iterator[Difference]:
    if old is None:
        yield Difference(component, name, WHOLE, None, _plain_struct(new, without))
    elif new is None:
        yield Difference(component, name, WHOLE, _plain_struct(old, without), None)
    else:
        yield from fields(component, name, old, new, without)
