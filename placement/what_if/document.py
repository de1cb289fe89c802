"""Reading a description of a cluster and of what is to happen to it: the format of the oracles.

`{nodes: [{id, dc, rack, state, tokens}], keyspaces: [{name, strategy, replication}], ops: [...], steps: [...]}`, or
several of them under `cases`. Whatever is wrong is said with its path in the document; what is not known here is left
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.state import STEPS, NodeState, OperationKind, RingNode, Step
from epochlake.placement.ring.strategies import Replication, replication_of
from epochlake.placement.ring.tokens import MAX_TOKEN, MIN_TOKEN

STATE_NAMES = {
    NodeState.NONE: "REGISTERED",
    NodeState.BOOTSTRAPPING: "BOOTSTRAPPING",
    NodeState.DECOMMISSIONING: "LEAVING",
    NodeState.REMOVING: "REMOVING",
    NodeState.REPLACING: "BOOT_REPLACING",
    NodeState.REBUILDING: "REBUILDING",
    NodeState.MOVING: "MOVING",
    NodeState.NORMAL: "JOINED",
    NodeState.LEFT: "LEFT",
}
_AT_REST = {STATE_NAMES[state]: state for state in (NodeState.NONE, NodeState.NORMAL, NodeState.LEFT)}
_CANCEL = "CANCEL"


class Asked(msgspec.Struct, frozen=True):
    """An operation of the document."""

    kind: OperationKind
    node: int = -1
    tokens: tuple[int, ...] | None = None
    force: bool = False
    replaced: int = -1
    keyspace: str = ""
    replication: Replication | None = None
    datacenter: str = ""


class Next(msgspec.Struct, frozen=True):
    """Which step of which operation comes next; `step` None: it is cancelled."""

    op: int
    step: Step | None
    name: str
    path: str


class Case(msgspec.Struct, frozen=True):
    """One checked description; `sizes`: bytes of a keyspace (all replicas of a row counted once), where known."""

    nodes: tuple[RingNode, ...]
    keyspaces: Mapping[str, Replication]
    sizes: Mapping[str, int]
    ops: tuple[Asked, ...]
    steps: tuple[Next, ...]
    epoch: int


def read_case(value: Any, path: str) -> Case:
    """Check one case; raises `InvalidRequest` naming the path of what is wrong."""
    case = _object(value, path)
    nodes = _each(case, "nodes", path, _node)
    known = {node.node_id for node in nodes}
    if len(known) != len(nodes):
        raise _wrong(f"{path}.nodes", "two nodes have the same id")
    pairs = _each(case, "keyspaces", path, _keyspace)
    if len({name for name, _, _ in pairs}) != len(pairs):
        raise _wrong(f"{path}.keyspaces", "two keyspaces have the same name")
    keyspaces = {name: replication for name, replication, _ in pairs}
    ops = _each(case, "ops", path, _operation) if "ops" in case else ()
    for index, asked in enumerate(ops):
        for node in (asked.node, asked.replaced):
            if node != -1 and node not in known:
                raise _wrong(f"{path}.ops[{index}]", f"there is no node {node}; there are {sorted(known)}")
        if asked.keyspace and asked.keyspace not in keyspaces:
            raise _wrong(f"{path}.ops[{index}].keyspace", f"there is no keyspace {asked.keyspace!r}")
    steps = (
        _each(case, "steps", path, lambda item, where: _step(item, where, ops)) if "steps" in case else _all_steps(ops)
    )
    # Where nothing is said: an epoch for each node, then those of the first entry, the keyspaces and the tokens.
    start = _object(case.get("start", {}), f"{path}.start")
    epoch = _integer(start.get("epoch", len(nodes) + 3), f"{path}.start.epoch")
    return Case(nodes, keyspaces, {name: size for name, _, size in pairs if size is not None}, ops, steps, epoch)


def _node(value: Any, path: str) -> RingNode:
    node = _object(value, path)
    node_id = _integer(_field(node, "id", path), f"{path}.id")
    if not 0 <= node_id < 2**31:
        raise _wrong(f"{path}.id", f"{node_id} is no id of a node: use 0 to 2^31-1")
    tokens = _tokens(node.get("tokens", []), f"{path}.tokens")
    state = node.get("state", "JOINED" if tokens else "REGISTERED")
    if state not in _AT_REST:
        raise _wrong(f"{path}.state", f"{state!r} is not one of {', '.join(_AT_REST)}")
    if (state == "JOINED") != bool(tokens):
        raise _wrong(f"{path}.tokens", f"a node that is {state} has {'tokens' if state == 'JOINED' else 'no tokens'}")
    dc, rack = (_text(_field(node, name, path), f"{path}.{name}") for name in ("dc", "rack"))
    return RingNode(node_id, dc, rack, _AT_REST[state], tokens)


def _keyspace(value: Any, path: str) -> tuple[str, Replication, int | None]:
    keyspace = _object(value, path)
    size = keyspace.get("bytes")
    return (
        _text(_field(keyspace, "name", path), f"{path}.name"),
        _replication(keyspace, path),
        None if size is None else _integer(size, f"{path}.bytes"),
    )


def _replication(value: Mapping[str, Any], path: str) -> Replication:
    options = _object(_field(value, "replication", path), f"{path}.replication")
    factors = {name: _integer(factor, f"{path}.replication.{name}") for name, factor in options.items()}
    try:
        return replication_of(_text(_field(value, "strategy", path), f"{path}.strategy"), factors)
    except InvalidRequest as error:
        raise _wrong(path, str(error)) from error


def _operation(value: Any, path: str) -> Asked:
    op = _object(value, path)
    name = _text(_field(op, "op", path), f"{path}.op")
    if name not in set(OperationKind):
        raise _wrong(f"{path}.op", f"{name!r} is not one of {', '.join(OperationKind)}")
    kind = OperationKind(name)
    if kind is OperationKind.REPLACE:
        tokens = _tokens(op["tokens"], f"{path}.tokens") if "tokens" in op else None
        pair = (_integer(_field(op, side, path), f"{path}.{side}") for side in ("replacement", "replaced"))
        node, replaced = pair
        return Asked(kind, node, tokens, replaced=replaced)
    if kind is OperationKind.CHANGE_REPLICATION:
        keyspace = _text(_field(op, "keyspace", path), f"{path}.keyspace")
        return Asked(kind, keyspace=keyspace, replication=_replication(op, path))
    node = _integer(_field(op, "node", path), f"{path}.node")
    if kind in (OperationKind.JOIN, OperationKind.MOVE):
        return Asked(kind, node, _tokens(_field(op, "tokens", path), f"{path}.tokens"))
    if kind is OperationKind.REBUILD:
        return Asked(kind, node, datacenter=_text(op.get("from", ""), f"{path}.from"))
    force = op.get("force", False)
    if not isinstance(force, bool):
        raise _wrong(f"{path}.force", f"{force!r} is neither true nor false")
    return Asked(kind, node, force=force)


def _step(value: Any, path: str, ops: tuple[Asked, ...]) -> Next:
    step = _object(value, path)
    op = _integer(_field(step, "op", path), f"{path}.op")
    if not 0 <= op < len(ops):
        raise _wrong(f"{path}.op", f"there is no operation {op}; ops has {len(ops)}")
    name = _text(_field(step, "step", path), f"{path}.step")
    names: dict[str, Step | None] = {step_name(known, ops[op].kind): known for known in STEPS}
    names[f"{_CANCEL}_{ops[op].kind.upper()}"] = None
    if name not in names:
        raise _wrong(f"{path}.step", f"{name!r} is no step of a {ops[op].kind}: use {', '.join(names)}")
    return Next(op, names[name], name, path)


def _all_steps(ops: tuple[Asked, ...]) -> tuple[Next, ...]:
    """Where the document names no steps: every operation as a whole, one after another."""
    return tuple(
        Next(index, step, step_name(step, asked.kind), f"ops[{index}]")
        for index, asked in enumerate(ops)
        for step in STEPS
    )


def step_name(step: Step, kind: OperationKind) -> str:
    return f"{step}_{kind.upper()}"


def _tokens(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise _wrong(path, "a list of tokens is needed")
    tokens = tuple(_integer(token, f"{path}[{index}]") for index, token in enumerate(value))
    for index, token in enumerate(tokens):
        if not MIN_TOKEN <= token <= MAX_TOKEN:
            raise _wrong(f"{path}[{index}]", f"{token} is no signed 64-bit number")
    if len(set(tokens)) != len(tokens):
        raise _wrong(path, "a token is given twice")
    return tuple(sorted(tokens))


def _each(value: Mapping[str, Any], name: str, path: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    items = _field(value, name, path)
    if not isinstance(items, list):
        raise _wrong(f"{path}.{name}", "a list is needed")
    return tuple(read(item, f"{path}.{name}[{index}]") for index, item in enumerate(items))


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, "an object is needed")
    return value


def _field(value: Mapping[str, Any], name: str, path: str) -> Any:
    if name not in value:
        raise _wrong(path, f"{name!r} is missing")
    return value[name]


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, f"text is needed, not {value!r}")
    return value


def _integer(value: Any, path: str) -> int:
    """A whole number; replication factors come as text from Cassandra's tools."""
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(path, f"a whole number is needed, not {value!r}")
    return value


def _wrong(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{path}: {what.rstrip('.')}.")
