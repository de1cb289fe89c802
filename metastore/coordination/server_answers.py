"""What a ZooKeeper server says of itself, by ZooKeeper's commands for operators: no session is needed for it."""

from __future__ import annotations

import msgspec
from epochlake.metastore.coordination.embedded.files import four_letter_command
from epochlake.metastore.coordination.ensemble import EnsembleConfiguration, Server, parse_configuration
from epochlake.placement.errors import InvalidRequest

LOOK_SECONDS = 2.0
"""How long a server may take to say what it is."""


class Answer(msgspec.Struct, frozen=True):
    """What a server says of itself. `state`: leader, follower, observer or standalone; `trouble`: why it does not say
    so, else empty.
    """

    number: int | None = None
    state: str = ""
    configuration: EnsembleConfiguration | None = None
    trouble: str = ""


def ask(server: Server, timeout: float = LOOK_SECONDS) -> Answer:
    """What answers at the address of a server, by ZooKeeper's commands for operators. Never raises."""
    host, _, port = server.reached_at.rpartition(":")
    if not port:
        return Answer(trouble="the ensemble does not know where its clients reach it")
    host = host.strip("[]")
    said = four_letter_command(host, int(port), b"conf", timeout).decode("utf-8", "replace")
    settings, _, membership = said.partition("membership:")
    values = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    if "dataDir" not in values:
        if "whitelist" in said:
            return Answer(trouble="it does not answer the commands conf and srvr (4lw.commands.whitelist)")
        return Answer(trouble="it follows no leader" if said else "it does not answer")
    state = four_letter_command(host, int(port), b"srvr", timeout).decode("utf-8", "replace").partition("Mode: ")[2]
    try:
        number = int(values.get("serverId", "0"))
        return Answer(number, state.split("\n")[0].strip(), parse_configuration(membership))
    except (ValueError, InvalidRequest):
        return Answer(trouble="it is no server of an ensemble")
