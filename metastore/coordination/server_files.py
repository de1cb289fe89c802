"""The files that a ZooKeeper server needs to come into an ensemble, or to found one with others."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable

from epochlake.metastore.coordination.embedded.jars import zookeeper_jars
from epochlake.metastore.coordination.embedded.server import in_properties
from epochlake.metastore.coordination.ensemble import Server, require_apart, require_same_place, require_startable
from epochlake.metastore.storage.places import join
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

STATIC = "zoo.cfg"
DYNAMIC = "zoo.cfg.dynamic"
MYID = "myid"
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
_ENCODING = "latin-1"
"""Of Java's files of properties."""
_LINE_OF_THE_DYNAMIC_FILE = "dynamicConfigFile="


def write_server_files(
    storage: Storage, directory: str, server: Server, members: Collection[Server], operator: str = ""
) -> None:
    """Make a server ready to be started in `directory`, which is made: it begins with `members`, and itself.

    A file of settings that is there is kept, but for the name of the dynamic file: ZooKeeper writes there what it has
    seen last, and a server that has not joined, or has left, is not in it and would not start. `operator`: who may
    change the ensemble, as `name:password`; the file gets a digest of it. Each file is written whole or not at all: a
    server that was half prepared is prepared again. Raises StorageUnavailable, and InvalidRequest, before anything is
    written, for a server that could not be started, for a number or an address that is another member's, and for a
    directory with the data of another server.
    """
    require_startable(server)
    require_same_place(members, server)
    require_apart([*(one for one in members if one.number != server.number), server])
    data = join(directory, "data")
    _require_own(storage, directory, join(data, MYID), server)
    static, dynamic = join(directory, STATIC), join(directory, DYNAMIC)
    storage.create_directory(data, parents=True)
    known = sorted({member.number: member for member in (*members, server)}.values())
    storage.replace_bytes(dynamic, _lines(str(member) for member in known))
    storage.replace_bytes(join(data, MYID), _lines([str(server.number)]))
    if storage.exists(static):
        lines = storage.read_bytes(static).decode(_ENCODING).splitlines()
        kept = [line for line in lines if not line.startswith(_LINE_OF_THE_DYNAMIC_FILE)]
    else:
        settings = {"dataDir": data, **_SETTINGS}
        if operator:
            settings["DigestAuthenticationProvider.superDigest"] = digest_of(operator)
        kept = [f"{name}={in_properties(str(value))}" for name, value in settings.items()]
    storage.replace_bytes(static, _lines([*kept, f"{_LINE_OF_THE_DYNAMIC_FILE}{in_properties(dynamic)}"]))


def _require_own(storage: Storage, directory: str, myid: str, server: Server) -> None:
    """That a directory has no data of a server of another number: it would vote with what that one has promised."""
    said = storage.read_bytes(myid).decode(_ENCODING).strip() if storage.exists(myid) else ""
    if said not in ("", str(server.number)):
        raise InvalidRequest(
            f"{directory} has the data of server {said[:20]}, and server {server.number} is to be prepared there",
            hint="Give another directory; or delete this one, if that server is gone for good",
        )


def digest_of(operator: str) -> str:
    """`name:password` as ZooKeeper's superDigest has it."""
    name = operator.partition(":")[0]
    return f"{name}:{base64.b64encode(hashlib.sha1(operator.encode()).digest()).decode()}"


def start_command(directory: str, java: str = "java") -> list[str]:
    """What starts the server of a directory."""
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [java, "-cp", f"{zookeeper_jars()}/*", main, join(directory, STATIC)]


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(_ENCODING)
