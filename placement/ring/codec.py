"""Ring states and operations as bytes, for log entries and snapshots: MessagePack, arrays as their little-endian
bytes.

A value that was built in the same way gives the same bytes: maps keep their order. What comes back compares equal
array by array, and its arrays cannot be written to.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from epochlake.placement.decoding import decodable
from epochlake.placement.ring.placements import Placements, same, settled
from epochlake.placement.ring.state import Operation, RingState


def encode_state(state: RingState) -> bytes:
    return _ENCODER.encode(state)


def encode_operation(operation: Operation) -> bytes:
    return _ENCODER.encode(operation)


def decode_state(data: bytes) -> RingState:
    """Raises `msgspec.DecodeError` (or its `ValidationError`) when these are not the bytes of a state."""
    state = msgspec.msgpack.decode(data, type=decodable(RingState), dec_hook=_to_array)
    shared = {replication: _shared(placements) for replication, placements in state.placements.items()}
    return msgspec.structs.replace(state, placements=shared)


def decode_operation(data: bytes) -> Operation:
    """Raises like `decode_state`."""
    return msgspec.msgpack.decode(data, type=decodable(Operation), dec_hook=_to_array)


def _shared(placements: Placements) -> Placements:
    """Reads and writes that do not differ are one object."""
    return settled(placements.reads) if same(placements.reads, placements.writes) else placements


def _from_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return [little.dtype.str, list(little.shape), little.tobytes()]
    raise NotImplementedError(f"{type(value)} has no encoding")


def _to_array(kind: Any, value: Any) -> Any:
    dtype, shape, data = value
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_from_array)
