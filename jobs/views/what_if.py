"""What-if on any ring: a description of a cluster from a file or from Cassandra's tools, and operations said in words.

Everything becomes one document in the format that `placement/what_if/simulate.py` answers. So a ring that was put
together here can be kept as a file, changed by hand, and asked again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.allocation import allocate_tokens
from epochlake.placement.ring.replication import replication_path
from epochlake.placement.ring.state import NodeState, RingNode, RingState, ring_state
from epochlake.placement.ring.strategies import NETWORK_TOPOLOGY, SIMPLE, SIMPLE_OPTION, Replication, replication_of
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN
from epochlake.placement.what_if.document import Case, read_case

Document = dict[str, Any]

TOKENS_OF_A_NODE = 16
"""Tokens of a node that joins, where it is not said how many."""

GRAMMAR = (
    "write one of: join NAME DC/RACK [tokens=N or tokens=T,T,…]; leave NODE [force]; move NODE tokens=N; "
    "replace NODE NAME [tokens=…]; remove NODE [force]; rebuild NODE [from=DC]; replication KEYSPACE:DC=N,…"
)

_DC_RACK = re.compile(r"(?P<dc>[^/\s]+)/(?P<rack>[^/\s]+)\Z")


def parse_keyspace(text: str) -> tuple[str, Document]:
    """A keyspace as `NAME:DC=N,DC=N` (NetworkTopologyStrategy) or `NAME:N` (SimpleStrategy). Raises InvalidRequest."""
    name, colon, settings = text.partition(":")
    if not name.strip() or not colon or not settings.strip():
        raise InvalidRequest(
            f"the keyspace {text!r} cannot be read",
            hint=f"Write NAME:DATACENTER=REPLICAS,… as in ks:dc1=3,dc2=2, or NAME:3 for {SIMPLE}",
        )
    return name.strip(), parse_strategy(settings)


def parse_keyspaces(texts: Iterable[str]) -> dict[str, Document]:
    """Keyspaces by name, each as `parse_keyspace` reads it. Raises InvalidRequest, also when one is given twice."""
    keyspaces: dict[str, Document] = {}
    for name, settings in map(parse_keyspace, texts):
        if name in keyspaces:
            raise InvalidRequest(
                f"the replication of keyspace {name!r} is given twice", hint="Write it once, as in ks:dc1=3,dc2=2"
            )
        keyspaces[name] = settings
    return keyspaces


def parse_strategy(text: str) -> Document:
    """`{"strategy": …, "replication": …}` from `DC=N,DC=N`, or from `N` for SimpleStrategy. Raises InvalidRequest."""
    if text.strip().isdecimal():
        return {"strategy": SIMPLE, "replication": {SIMPLE_OPTION: int(text)}}
    replication: dict[str, int] = {}
    for part in (part.strip() for part in text.split(",")):
        datacenter, _, count = (word.strip() for word in part.partition("="))
        if not datacenter or not count.isdecimal():
            raise InvalidRequest(
                f"the replication {part!r} cannot be read", hint="Write DATACENTER=REPLICAS, as in dc1=3"
            )
        if datacenter in replication:
            raise InvalidRequest(f"the replication names datacenter {datacenter!r} twice")
        replication[datacenter] = int(count)
    return {"strategy": SIMPLE if set(replication) == {SIMPLE_OPTION} else NETWORK_TOPOLOGY, "replication": replication}


def parse_tokens(texts: Iterable[str]) -> tuple[int, ...]:
    """Tokens, parted by commas or given one by one, ascending. Raises InvalidRequest naming the one that is wrong."""
    tokens: list[int] = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        if re.fullmatch(r"[+-]?\d+", text) is None:
            raise InvalidRequest(f"{text!r} is no token", hint=f"Write a whole number from {MIN_TOKEN} to {MAX_TOKEN}")
        token = int(text)
        if not MIN_TOKEN <= token <= MAX_TOKEN:
            raise InvalidRequest(f"{token} is no token: tokens are from {MIN_TOKEN} to {MAX_TOKEN}")
        if token in tokens:
            raise InvalidRequest(f"token {token} is given twice: a token has one owner")
        tokens.append(token)
    return tuple(sorted(tokens))


def with_keyspaces(document: Document, keyspaces: Mapping[str, Document], sizes: Mapping[str, int]) -> Document:
    """The document with `keyspaces` in the place of its own, if any are given, and with their sizes in bytes.

    Raises InvalidRequest for a size of a keyspace that is not there, and for replicas in a datacenter without nodes.
    """
    for name, settings in keyspaces.items():
        _require_datacenters(document, name, settings)
    listed = [{"name": name, **settings} for name, settings in keyspaces.items()] or document.get("keyspaces", [])
    if not isinstance(listed, list) or not all(isinstance(keyspace, dict) for keyspace in listed):
        return document  # what is wrong with it is said, with its path, by who reads it
    names = [keyspace.get("name") for keyspace in listed]
    for name in sizes:
        if name not in names:
            raise InvalidRequest(
                f"there is no keyspace {name!r} to have a size: there are {', '.join(map(str, names))}"
            )
    sized = [
        {**keyspace, "bytes": sizes[keyspace["name"]]} if keyspace.get("name") in sizes else keyspace
        for keyspace in listed
    ]
    return {**document, "keyspaces": sized}


def _require_datacenters(document: Document, keyspace: str, settings: Document) -> None:
    nodes = document.get("nodes", [])
    if settings["strategy"] != NETWORK_TOPOLOGY or not nodes or not all(isinstance(node, dict) for node in nodes):
        return
    there = {str(node.get("dc")) for node in nodes}
    for datacenter, count in settings["replication"].items():
        if count and datacenter not in there:
            raise InvalidRequest(
                f"keyspace {keyspace!r} cannot have replicas in {datacenter!r}, where no node is: the datacenters are "
                f"{', '.join(sorted(there))}"
            )


def with_operations(document: Document, asked: Sequence[str]) -> Document:
    """The document with operations said in words, to be carried out one after another. Raises InvalidRequest.

    Nodes are named by their address, name or number. Tokens that are only counted are allocated on the ring as it will
    be then; a change of replication becomes as many operations as it has steps.
    """
    if not asked:
        return document
    if "cases" in document or "ops" in document:
        raise InvalidRequest(
            "operations can be given only for one cluster that has none yet", hint="Leave out --op, or 'ops'"
        )
    story = _Story(document, read_case(document, "document"))
    for words in asked:
        story.add(words)
    return {**document, "nodes": story.nodes, "ops": story.ops}


class _Story:
    """Operations as they are added: the nodes of the document, and who will own which tokens by then."""

    def __init__(self, document: Document, case: Case) -> None:
        self.nodes: list[Document] = list(document["nodes"])
        self.ops: list[Document] = []
        self._members = {node.node_id: node for node in case.nodes}
        self._keyspaces = dict(case.keyspaces)
        self._kinds: dict[str, Callable[[list[str], str], None]] = {
            "join": self._join,
            "leave": lambda words, said: self._goes("leave", words, said),
            "decommission": lambda words, said: self._goes("leave", words, said),
            "remove": lambda words, said: self._goes("remove", words, said),
            "move": self._move,
            "replace": self._replace,
            "rebuild": self._rebuild,
            "replication": self._replication,
        }

    def add(self, said: str) -> None:
        kind, *words = said.split() or [""]
        if kind not in self._kinds:
            raise InvalidRequest(f"the operation {said!r} cannot be read: {GRAMMAR}")
        self._kinds[kind](words, said)

    def _join(self, words: list[str], said: str) -> None:
        (name, place), options = _split(words, 2, {"tokens"}, said)
        found = _DC_RACK.match(place)
        if found is None:
            raise InvalidRequest(f"the operation {said!r} cannot be read: {place!r} is not DATACENTER/RACK")
        node = self._new(name, found["dc"], found["rack"])
        tokens = self._tokens(node, options.get("tokens", str(TOKENS_OF_A_NODE)))
        self.ops.append({"op": "join", "node": node.node_id, "tokens": list(tokens)})
        self._own(node, tokens)

    def _goes(self, kind: str, words: list[str], said: str) -> None:
        (name,), options = _split(words, 1, {"force"}, said)
        node = self._node(name)
        self.ops.append({"op": kind, "node": node.node_id, **({"force": True} if "force" in options else {})})
        self._own(node, (), NodeState.LEFT)

    def _move(self, words: list[str], said: str) -> None:
        (name,), options = _split(words, 1, {"tokens"}, said)
        node = self._node(name)
        if "tokens" not in options:
            raise InvalidRequest(
                f"the operation {said!r} cannot be read", hint="Say where to, with tokens=N or tokens=T,T,…"
            )
        tokens = self._tokens(node, options["tokens"])
        self.ops.append({"op": "move", "node": node.node_id, "tokens": list(tokens)})
        self._own(node, tokens)

    def _replace(self, words: list[str], said: str) -> None:
        (lost, name), options = _split(words, 2, {"tokens"}, said)
        replaced = self._node(lost)
        node = self._new(name, replaced.datacenter, replaced.rack)
        op: Document = {"op": "replace", "replaced": replaced.node_id, "replacement": node.node_id}
        tokens = replaced.tokens
        self._own(replaced, (), NodeState.LEFT)
        if "tokens" in options:
            tokens = self._tokens(node, options["tokens"])
            op["tokens"] = list(tokens)
        self.ops.append(op)
        self._own(node, tokens)

    def _rebuild(self, words: list[str], said: str) -> None:
        (name,), options = _split(words, 1, {"from"}, said)
        source = {"from": options["from"]} if "from" in options else {}
        self.ops.append({"op": "rebuild", "node": self._node(name).node_id, **source})

    def _replication(self, words: list[str], said: str) -> None:
        (text,), _ = _split(words, 1, set(), said)
        name, settings = parse_keyspace(text)
        if name not in self._keyspaces:
            raise InvalidRequest(f"there is no keyspace {name!r}: there are {', '.join(self._keyspaces) or 'none'}")
        target = replication_of(settings["strategy"], settings["replication"])
        path = replication_path(self._keyspaces[name], target)
        if not path:
            raise InvalidRequest(f"keyspace {name!r} has this replication already")
        self.ops += [
            {
                "op": "change_replication",
                "keyspace": name,
                "strategy": step.strategy,
                "replication": dict(step.factors),
            }
            for step in path
        ]
        self._keyspaces[name] = target

    def _node(self, name: str) -> RingNode:
        for described in self.nodes:
            if name in (described.get("address"), described.get("name"), str(described["id"])):
                return self._members[described["id"]]
        known = ", ".join(str(node.get("address") or node.get("name") or node["id"]) for node in self.nodes)
        raise InvalidRequest(f"there is no node {name!r}: there are {known or 'none'}")

    def _new(self, name: str, datacenter: str, rack: str) -> RingNode:
        if any(name in (node.get("address"), node.get("name"), str(node["id"])) for node in self.nodes):
            raise InvalidRequest(f"there is a node {name!r} already", hint="Give the new one another name")
        node_id = max(self._members, default=0) + 1
        self.nodes.append({"id": node_id, "address": name, "dc": datacenter, "rack": rack, "state": "REGISTERED"})
        self._members[node_id] = RingNode(node_id, datacenter, rack)
        return self._members[node_id]

    def _tokens(self, node: RingNode, text: str) -> tuple[int, ...]:
        """The tokens that are listed; a small number without a sign or comma counts tokens that are to be allocated."""
        if not text.isdecimal() or int(text) > 2**16:
            return parse_tokens([text])
        replication = max(self._keyspaces.values(), key=lambda one: one.factor(node.datacenter), default=None)
        return allocate_tokens(
            self._state_without(node),
            node.datacenter,
            node.rack,
            int(text),
            replication or Replication(SIMPLE, ((SIMPLE_OPTION, 1),)),
        )

    def _state_without(self, node: RingNode) -> RingState:
        return ring_state((other for other in self._members.values() if other.node_id != node.node_id), {})

    def _own(self, node: RingNode, tokens: tuple[int, ...], state: NodeState = NodeState.NORMAL) -> None:
        self._members[node.node_id] = RingNode(node.node_id, node.datacenter, node.rack, state, tokens)


def _split(words: list[str], count: int, known: set[str], said: str) -> tuple[list[str], dict[str, str]]:
    """The first `count` words, and the options after them (`name=value`, or `name` alone)."""
    options = {}
    for word in words[count:]:
        name, _, value = word.partition("=")
        if name not in known:
            raise InvalidRequest(f"the operation {said!r} cannot be read: {word!r} means nothing here; {GRAMMAR}")
        options[name] = value
    if len(words) < count:
        raise InvalidRequest(f"the operation {said!r} cannot be read, something is missing: {GRAMMAR}")
    return words[:count], options
