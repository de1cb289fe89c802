"""Output of `nodetool ring` and `nodetool describering` becomes a document that can be simulated."""

from __future__ import annotations

import pytest
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.what_if.nodetool import from_describering, from_ring
from epochlake.placement.what_if.simulate import simulate

KEYSPACES = {"ks": {"strategy": "NetworkTopologyStrategy", "replication": {"east": "2", "west": "1"}}}

RING = """
Datacenter: east
==========
Address       Rack        Status State   Load            Owns                Token
                                                                             6148914691236517204
10.0.0.1      rack-a      Up     Normal  104.21 KiB      66.67%              -9223372036854775808
10.0.0.2      rack-b      Up     Normal  98.5 GiB        66.67%              -3074457345618258603
10.0.0.1      rack-a      Up     Normal  104.21 KiB      66.67%              6148914691236517204

Datacenter: west
==========
Address       Rack        Status State   Load            Owns                Token
                                                                             3074457345618258602
10.1.0.1      rack-a      Down   Normal  ?               100.00%             3074457345618258602

  Warning: "nodetool ring" is used to output all the tokens of a node.
  To view status related info of a node use "nodetool status" instead.

"""


def details(*hosts: str) -> str:
    places = {"10.0.0.1": ("east", "rack-a"), "10.0.0.2": ("east", "rack-b"), "10.1.0.1": ("west", "rack-a")}
    rows = (f"EndpointDetails(host:{host}, datacenter:{places[host][0]}, rack:{places[host][1]})" for host in hosts)
    return ", ".join(rows)


def token_range(start: int, end: int, *hosts: str) -> str:
    listed = ", ".join(hosts)
    return (
        f"\tTokenRange(start_token:{start}, end_token:{end}, endpoints:[{listed}], rpc_endpoints:[{listed}], "
        f"endpoint_details:[{details(*hosts)}])"
    )


DESCRIBERING = "\n".join(
    [
        "Schema Version:7a3b9f3e-4b7b-3f7e-9d1f-0c1d2e3f4a5b",
        "TokenRange: ",
        token_range(6148914691236517204, -9223372036854775808, "10.0.0.1", "10.0.0.2", "10.1.0.1"),
        token_range(-9223372036854775808, -3074457345618258603, "10.0.0.2", "10.1.0.1", "10.0.0.1"),
        token_range(-3074457345618258603, 3074457345618258602, "10.1.0.1", "10.0.0.1", "10.0.0.2"),
        token_range(3074457345618258602, 6148914691236517204, "10.0.0.1", "10.0.0.2", "10.1.0.1"),
    ]
)

NODES = [
    ("10.0.0.1", "east", "rack-a", [-9223372036854775808, 6148914691236517204]),
    ("10.0.0.2", "east", "rack-b", [-3074457345618258603]),
    ("10.1.0.1", "west", "rack-a", [3074457345618258602]),
]


@pytest.mark.parametrize("document", [from_ring(RING, KEYSPACES), from_describering(DESCRIBERING, KEYSPACES)])
def test_nodes_places_and_tokens_are_read(document: dict) -> None:  # type: ignore[type-arg]
    found = [(node["address"], node["dc"], node["rack"], node["tokens"]) for node in document["nodes"]]
    assert sorted(found) == NODES
    assert document["keyspaces"] == [{"name": "ks", **KEYSPACES["ks"]}]


def test_what_was_read_can_be_simulated_and_agrees_with_what_describering_said() -> None:
    document = from_describering(DESCRIBERING, KEYSPACES)
    addresses = {node["id"]: node["address"] for node in document["nodes"]}
    answer = simulate(document)["keyspaces"][0]["ranges"]
    assert [addresses[nodes[0]] for _, _, nodes in answer] == ["10.0.0.2", "10.1.0.1", "10.0.0.1", "10.0.0.1"]
    assert all(len(nodes) == 3 for _, _, nodes in answer)


def test_an_operation_can_be_tried_on_it() -> None:
    document = from_ring(RING, KEYSPACES)
    leaving = next(node["id"] for node in document["nodes"] if node["address"] == "10.0.0.2")
    answer = simulate({**document, "ops": [{"op": "leave", "node": leaving}]})
    assert answer["steps"][0]["result"] == "rejected"
    assert "datacenter east has 2 nodes" in answer["steps"][0]["reason"]


WRONG = [
    (from_ring, "hello", "not the output of nodetool ring"),
    (from_ring, RING.replace("Up     Normal  98.5", "Up     Leaving 98.5"), "10.0.0.2 is Leaving"),
    (from_ring, RING.replace("Datacenter: east", ""), "before any 'Datacenter:'"),
    (from_ring, RING.replace("rack-b      Up", "rack-b      Sideways"), "line 7: not understood"),
    (from_ring, RING.replace("3074457345618258602\n\n", "9999999999999999999\n\n"), "64-bit"),
    (from_describering, RING, "not the output of nodetool describering"),
    (from_describering, DESCRIBERING.replace("endpoint_details:", "details:").replace("host:", "h:"), "line 3"),
    (from_describering, DESCRIBERING.rsplit("\n", 3)[0], "10.1.0.1 hold replicas but are first for no range"),
]


@pytest.mark.parametrize(("read", "text", "message"), WRONG, ids=[row[2] for row in WRONG])
def test_what_cannot_be_read_is_refused_with_the_line(read, text: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest, match=message):
        read(text, KEYSPACES)
