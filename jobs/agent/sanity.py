"""Whether what another agent says can be true, before it is believed: in what it asks, and in what it answers.

What is believed is remembered, and told to others, who refuse what cannot be true: so an agent that took it from a
liar would be refused itself.
"""

from __future__ import annotations

import re

from epochlake.jobs.agent.discovery import MOST_ADDRESSES, Ask, Told
from epochlake.jobs.agent.http_client import split_address
from epochlake.jobs.agent.messages import MOST_SIGHTINGS, Answer, Introduction, Sighting
from epochlake.placement.errors import InvalidRequest

LONGEST_WORD = 255
LONGEST_FEATURES = 16_384
"""Characters that the names of all features of an agent have together."""
HIGHEST = 2**53

_NODE_NAME = re.compile(r"[\w.-]+\Z", re.ASCII)


def is_node_name(name: str) -> bool:
    """Whether agents can speak of a node by this name."""
    return len(name) <= LONGEST_WORD and _NODE_NAME.match(name) is not None


def untrue(who: Introduction | Sighting) -> str | None:
    """Why what is said of an agent cannot be true, or would fill the memory; None where it can."""
    words = (who.agent_id, who.name, who.address)
    if any(not word or len(word) > LONGEST_WORD for word in words):
        return "an agent has an id, a name and an address, of 255 characters at most"
    if not is_node_name(who.name):
        return f"{who.name!r} is no name of a node: it has letters of ASCII, digits, '_', '.' and '-'"
    if not (0 <= who.counter < HIGHEST and 0 <= who.epoch < HIGHEST):
        return "a counter and an epoch are below 2**53"
    if isinstance(who, Introduction):
        said = (who.product_version, *((who.tag.name, who.tag.id) if who.tag is not None else ()))
        if any(len(word) > LONGEST_WORD for word in said) or sum(map(len, who.features)) > LONGEST_FEATURES:
            return "a version and a tag have 255 characters at most, and all features 16,384"
        if len(who.coordination_server) > LONGEST_WORD:
            return "a ZooKeeper server is written with 255 characters at most"
    return _no_address(who.address)


def untrue_answer(answer: Answer) -> str | None:
    """Why an answer cannot be true; None where it can."""
    told, known = answer.sightings[:MOST_SIGHTINGS], answer.known[:MOST_SIGHTINGS]
    return untrue(answer.sender) or next(filter(None, (*map(untrue, told), *map(_no_address, known))), None)


def untrue_search(said: Ask | Told) -> str | None:
    """Why what one who searches asks, or is told, cannot be true; None where it can."""
    words = (said.agent_id, said.number, said.address, *said.known)
    if len(said.known) > MOST_ADDRESSES or any(not word or len(word) > LONGEST_WORD for word in words):
        return f"at most {MOST_ADDRESSES} addresses, of 255 characters at most"
    return next(filter(None, map(_no_address, (said.address, *said.known))), None)


def _no_address(address: str) -> str | None:
    if len(address) > LONGEST_WORD:
        return "an address has 255 characters at most"
    try:
        split_address(address)
    except InvalidRequest as error:
        return error.reason
    return None
