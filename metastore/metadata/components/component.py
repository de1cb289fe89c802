"""`Component`: all that a part of the cluster metadata has to say about itself.

The table of components is the body of `ClusterMetadata`: a field is annotated with its component, and that is the only
place that names it.

    directory: Annotated[Directory, DIRECTORY]

Empty metadata, snapshots, digests, differences, tables and the epochs of last changes are all made by walking over that
table. So a new component is a module with its state and its `Component`, and one field (decision 040).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_type_hints

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from epochlake.metastore.metadata.cluster import ClusterMetadata
    from epochlake.metastore.metadata.differences import Difference

T = TypeVar("T")

TableFunction = Callable[["ClusterMetadata"], pa.Table]
"""Makes an Arrow table of one version of the metadata. Its name is the name of the table."""


class Facts(msgspec.Struct, frozen=True):
    """What a component adds to the digest of a state: plain values by key, and chunks of bytes in a fixed order.

    `epoch` is the epoch of its last change where the plain values do not have it.
    """

    small: Mapping[str, Any] = {}
    chunks: tuple[bytes, ...] = ()
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Component(Generic[T]):
    """A part of the cluster metadata, whose state is a `T`.

    empty:        the state before the first epoch
    since:        the format of snapshots that was the first to have it; an older snapshot has it empty
    stored:       the struct that a snapshot keeps as JSON; no two components have a field of the same name
    encode:       from the state to `stored`; equal states give equal values in equal order
    decode:       from `stored`, and the table of `arrays` where there are any, to the state
    arrays:       the state's arrays as one Arrow batch, for what is too large for JSON
    last_change:  the epoch that last changed the state
    facts:        what the digest of a state is made of; None: of the fields of `stored`
    differences:  what differs between two versions, in a fixed order
    tables:       Arrow tables that show it
    """

    empty: T
    since: int
    stored: type[msgspec.Struct]
    encode: Callable[[T], msgspec.Struct]
    decode: Callable[[Any, pa.Table | None], T]
    last_change: Callable[[T], int]
    differences: Callable[[ClusterMetadata, ClusterMetadata], Iterable[Difference]]
    tables: tuple[TableFunction, ...] = ()
    arrays: Callable[[T], pa.RecordBatch] | None = None
    facts: Callable[[T], Facts] | None = None

    def __post_init__(self) -> None:
        if self.arrays is not None and self.facts is None:
            raise TypeError("a component with arrays has to give its facts: Arrow's bytes depend on Arrow's version")

    def facts_of(self, name: str, state: T) -> Facts:
        """What a state adds to the digest, as the component called `name`."""
        return Facts({name: plain(self.encode(state))}) if self.facts is None else self.facts(state)


@cache
def components_of(kind: type[ClusterMetadata]) -> Mapping[str, Component[Any]]:
    """The components of a class of metadata by the name of their field, in the order of the fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: note
        for name in kind.__struct_fields__
        for note in getattr(hints[name], "__metadata__", ())
        if isinstance(note, Component)
    }


def plain(value: Any) -> Any:
    """A value as JSON has it, without fields that have their default."""
    if isinstance(value, msgspec.Struct):
        return {
            name: plain(getattr(value, name))
            for name, default in _defaults(type(value))
            if getattr(value, name) != default
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (field.name, field.default_factory() if field.default is msgspec.NODEFAULT and _makes(field) else field.default)
        for field in msgspec.structs.fields(kind)
    )


def _makes(field: msgspec.structs.FieldInfo) -> bool:
    return field.default_factory is not msgspec.NODEFAULT
