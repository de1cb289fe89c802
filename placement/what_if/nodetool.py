"""Descriptions of an existing Cassandra cluster: what `nodetool ring` and `nodetool describering` print.

Both become a document for `simulate`, once it is said how keyspaces are replicated. Node ids are given in the order
in which addresses first appear; each node keeps its address. `nodetool ring` must show racks and token by token; a
keyspace argument changes only its column of ownership, which is not used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.what_if.document import read_case

_DATACENTER = re.compile(r"^Datacenter:\s*(?P<name>\S+)\s*$")
_RING_ROW = re.compile(
    r"^(?P<address>\S+)\s+(?P<rack>\S+)\s+(?P<status>Up|Down|\?)\s+(?P<state>Normal|Joining|Leaving|Moving|\?)\s+"
    r".*?(?P<token>-?\d+)\s*$"
)
_TOKEN_RANGE = re.compile(r"TokenRange\(start_token:(?P<start>-?\d+), end_token:(?P<end>-?\d+),")
_DETAILS = re.compile(r"EndpointDetails\(host:(?P<host>[^,)\s]+), datacenter:(?P<dc>[^,)]+), rack:(?P<rack>[^,)]+)\)")
_ENDPOINTS = re.compile(r"(?<!_)endpoints:\[(?P<hosts>[^\]]*)\]")


class _Member(msgspec.Struct, frozen=True):
    address: str
    datacenter: str
    rack: str


def from_ring(text: str, keyspaces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A document from the output of `nodetool ring`; `keyspaces` maps names to `{"strategy": …, "replication": …}`.

    Raises `InvalidRequest` when a line cannot be read, when a node is joining, leaving or moving (what it is about to
    own is not in this output), and where the document would be malformed.
    """
    owned: dict[_Member, list[int]] = {}
    datacenter = ""
    for number, line in enumerate(text.splitlines(), start=1):
        heading = _DATACENTER.match(line.strip())
        row = _RING_ROW.match(line.strip())
        if heading:
            datacenter = heading["name"]
        elif row and not datacenter:
            raise InvalidRequest(f"line {number}: a node before any 'Datacenter:' line", hint="Give the whole output")
        elif row and row["state"] != "Normal":
            raise InvalidRequest(
                f"line {number}: node {row['address']} is {row['state']}",
                hint="Wait until it is Normal, then run it again",
            )
        elif row:
            member = _Member(row["address"], datacenter, row["rack"])
            owned.setdefault(member, []).append(int(row["token"]))
        elif _looks_like_a_node(line):
            raise InvalidRequest(f"line {number}: not understood: {line.strip()!r}", hint="Give the unchanged output")
    if not owned:
        raise InvalidRequest("no node was found: this is not the output of nodetool ring.")
    return _document(owned, keyspaces)


def from_describering(text: str, keyspaces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A document from the output of `nodetool describering`: the owner of a range's end is its first endpoint.

    Every datacenter's nodes must hold replicas of the keyspace that was described: others are not in this output.
    Raises `InvalidRequest` like `from_ring`.
    """
    owned: dict[_Member, list[int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if "TokenRange(" not in line:
            continue
        bounds, endpoints = _TOKEN_RANGE.search(line), _ENDPOINTS.search(line)
        details = [_Member(row["host"], row["dc"], row["rack"]) for row in _DETAILS.finditer(line)]
        if bounds is None or endpoints is None or not details:
            raise InvalidRequest(f"line {number}: a TokenRange without tokens, endpoints or endpoint_details.")
        by_address = {member.address: member for member in details}
        for member in details:
            owned.setdefault(member, [])
        first = endpoints["hosts"].split(",")[0].strip()
        if first not in by_address:
            raise InvalidRequest(f"line {number}: endpoint {first!r} is not among the endpoint_details.")
        owned[by_address[first]].append(int(bounds["end"]))
    if not owned:
        raise InvalidRequest("no TokenRange was found: this is not the output of nodetool describering.")
    silent = [member.address for member, tokens in owned.items() if not tokens]
    if silent:
        raise InvalidRequest(
            f"nodes {', '.join(silent)} hold replicas but are first for no range, so their tokens are not in "
            "this output",
            hint="Use nodetool ring instead",
        )
    return _document(owned, keyspaces)


def _document(owned: Mapping[_Member, list[int]], keyspaces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    document = {
        "nodes": [
            {
                "id": node_id,
                "address": member.address,
                "dc": member.datacenter,
                "rack": member.rack,
                "state": "JOINED",
                "tokens": sorted(set(tokens)),
            }
            for node_id, (member, tokens) in enumerate(owned.items(), start=1)
        ],
        "keyspaces": [{"name": name, **settings} for name, settings in keyspaces.items()],
    }
    read_case(document, "document")
    return document


def _looks_like_a_node(line: str) -> bool:
    """A line that ends in a big number but is not the ring's top line, which repeats the last token alone."""
    words = line.split()
    return len(words) > 2 and bool(re.fullmatch(r"-?\d{6,}", words[-1]))
