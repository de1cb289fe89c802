"""The files that a ZooKeeper server needs to come into an ensemble, or to found one with others."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from pathlib import Path

from epochlake.metastore.coordination.embedded.jars import zookeeper_jars
from epochlake.metastore.coordination.embedded.server import in_properties, java_command
from epochlake.metastore.coordination.ensemble import Server

STATIC = "zoo.cfg"
DYNAMIC = "zoo.cfg.dynamic"
_SETTINGS = {
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "conf,srvr,ruok,mntr",
    "tickTime": 500,
    "initLimit": 20,
    "syncLimit": 10,
    "minSessionTimeout": 1000,
    "maxSessionTimeout": 120_000,
    "maxClientCnxns": 0,
    "autopurge.snapRetainCount": 3,
    "autopurge.purgeInterval": 1,
    # Both are needed for members that change while they serve, the second one from or to a single voter.
    "reconfigEnabled": "true",
    "standaloneEnabled": "false",
}
"""As in conf/zookeeper.cfg."""
_LINE_OF_THE_DYNAMIC_FILE = "dynamicConfigFile="


def write_server_files(directory: Path, server: Server, members: Collection[Server], operator: str = "") -> None:
    """Make a server ready to be started in `directory`, which is made: it begins with `members`, and itself.

    A file of settings that is there is kept, but for the name of the dynamic file: ZooKeeper writes there what it has
    seen last, and a server that has not joined, or has left, is not in it and would not start. `operator`: who may
    change the ensemble, as `name:password`; the file gets a digest of it. Raises OSError.
    """
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    others = [member for member in members if member.number != server.number]
    known = sorted([*others, server], key=lambda member: member.number)
    _write(directory / DYNAMIC, "".join(f"{member}\n" for member in known))
    _write(data / "myid", f"{server.number}\n")
    static = directory / STATIC
    if static.exists():
        lines = static.read_text(encoding="latin-1").splitlines()
        kept = [line for line in lines if not line.startswith(_LINE_OF_THE_DYNAMIC_FILE)]
    else:
        settings = {"dataDir": data, **_SETTINGS}
        if operator:
            settings["DigestAuthenticationProvider.superDigest"] = digest_of(operator)
        kept = [f"{name}={in_properties(str(value))}" for name, value in settings.items()]
    named = f"{_LINE_OF_THE_DYNAMIC_FILE}{in_properties(str(directory / DYNAMIC))}"
    _write(static, "".join(f"{line}\n" for line in [*kept, named]))


def digest_of(operator: str) -> str:
    """`name:password` as ZooKeeper's superDigest has it."""
    name = operator.partition(":")[0]
    return f"{name}:{base64.b64encode(hashlib.sha1(operator.encode()).digest()).decode()}"


def start_command(directory: Path, java: str = "java") -> list[str]:
    """What starts the server of a directory."""
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return java_command(java, (), main, directory / STATIC, zookeeper_jars())


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a server that was half prepared is prepared again."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="latin-1")
    beside.replace(path)
