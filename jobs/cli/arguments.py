"""Arguments that several commands take, and how texts of them are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer
from epochlake.jobs.administration.nodes import VolumeSpec
from epochlake.jobs.cli.session import Session
from epochlake.jobs.views.what_if import parse_strategy
from epochlake.metastore.metadata.events.table_lifetimes import LONGEST_SECONDS
from epochlake.placement.errors import InvalidRequest

At = Annotated[int | None, typer.Option("--at", metavar="EPOCH", help="As it was at this epoch.", min=1)]
Level = Annotated[
    str | None, typer.Option("--consistency", metavar="LEVEL", help="ONE, QUORUM, ALL, …; else the configuration's.")
]

AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="The rows as they were then: 2013-01-01T10:00:00Z, with a zone."),
]

TableName = Annotated[
    str,
    typer.Argument(metavar="KEYSPACE.TABLE", help="The table, with its keyspace: air.flights.", show_default=False),
]
RequestName = Annotated[
    str,
    typer.Argument(metavar="REQUEST", help="Its id, or the node or keyspace that it is about.", show_default=False),
]
TokenOption = Annotated[
    list[str] | None,
    typer.Option("--token", metavar="TOKEN[,TOKEN]", help="A token on the ring that it is to own. Repeat for several."),
]
TokensOption = Annotated[
    int | None,
    typer.Option("--tokens", metavar="N", help="How many tokens, allocated so that ownership evens out."),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Also where keyspaces on the ring would keep fewer replicas than they ask for.")
]
GiveUpOption = Annotated[
    bool, typer.Option("--force", help="Also where rows are lost that only storage that is gone has acknowledged.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", help="At most so many rows; 0: all.", min=0)]


class Streaming(StrEnum):
    """Who copies files."""

    THREADS = "threads"
    SPARK = "spark"
    AGENTS = "agents"


Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="HOST:PORT",
        help="An agent to ask for the others, with --streaming agents; else the configuration's. Repeat for several.",
    ),
]


MOST_BYTES = 2**63
"""Sizes are 64-bit numbers everywhere."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\Z", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)?\Z", re.IGNORECASE)
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}


def of(context: typer.Context) -> Session:
    """The session of this run."""
    session: Session = context.obj
    return session


def parse_volumes(texts: Iterable[str]) -> list[VolumeSpec]:
    """Volumes as `NAME=URI` or `URI`, with `,CAPACITY` after it where it is not that of the file system.

    Volumes without a name are d1, d2, … Raises InvalidRequest.
    """
    specs = []
    for number, text in enumerate(texts, 1):
        place, _, capacity = text.partition(",")
        name, equals, uri = place.partition("=")
        if not equals or "/" in name:
            name, uri = f"d{number}", place
        if not name or not uri:
            raise InvalidRequest(f"the volume {text!r} cannot be read", hint="Write NAME=URI, or NAME=URI,CAPACITY")
        specs.append(VolumeSpec(name, uri, parse_size(capacity) if capacity else None))
    return specs


def parse_size(text: str) -> int:
    """Bytes from `500GB`, `1.5TiB`, `1024`. Raises InvalidRequest."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise InvalidRequest(f"{text!r} is no size", hint="Write bytes, or something like 500GB or 2TiB")
    number, unit, binary = match.groups()
    size = float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    if size >= MOST_BYTES:
        raise InvalidRequest(f"{text!r} is no size: it has to be less than 9.22 EB")
    return int(size)


def parse_duration(text: str) -> float:
    """Seconds from `90`, `30min`, `2h`, `1d`. Raises InvalidRequest."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise InvalidRequest(f"{text!r} is no duration", hint="Write seconds, or something like 30min, 2h or 1d")
    number, unit = match.groups()
    seconds = float(number) * _SECONDS[(unit or "s").lower()]
    if seconds > LONGEST_SECONDS:
        shown = text if len(text) <= 60 else f"{text[:57]}…"
        raise InvalidRequest(f"{shown!r} is no duration: it is longer than a thousand years", hint="Give a shorter one")
    return seconds


def parse_replication(texts: Iterable[str]) -> dict[str, int]:
    """Replicas by datacenter from `dc1=3` or `dc1=3,dc2=2`; `3` alone is SimpleStrategy's. Raises InvalidRequest."""
    replication: dict[str, int] = parse_strategy(",".join(texts))["replication"]
    return replication


def parse_key(texts: Iterable[str]) -> dict[str, str]:
    """A primary key from `COLUMN=VALUE` texts. Raises InvalidRequest."""
    key: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in key:
            raise InvalidRequest(
                f"the key {text!r} cannot be read", hint="Write COLUMN=VALUE, once for each key column"
            )
        key[name] = value
    return key


def parse_names(texts: Iterable[str]) -> list[str]:
    """Names, parted by commas or given one by one."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def whole_list(texts: Iterable[str] | None, *, none: bool, option: str) -> tuple[str, ...] | None:
    """Names that replace those that are there; None when neither these nor `none` was given. Raises InvalidRequest."""
    names = parse_names(texts or ())
    if names and none:
        raise InvalidRequest(f"--{option} says which, and the option for none says none", hint="Give one of the two")
    return tuple(names) if names or none else None
