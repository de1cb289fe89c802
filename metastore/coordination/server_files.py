"""The files that a ZooKeeper server needs to come into an ensemble, or to found one with others, and whether those of
a directory are as they have to be for a start.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable

import msgspec
from epochlake.metastore.coordination.embedded.jars import zookeeper_jars
from epochlake.metastore.coordination.embedded.server import in_properties
from epochlake.metastore.coordination.ensemble import (
    EnsembleConfiguration,
    Server,
    parse_configuration,
    require_apart,
    require_preparable,
    require_same_place,
)
from epochlake.metastore.errors import ConfigurationError, CoordinationUnavailable
from epochlake.metastore.storage.failures import MissingFile
from epochlake.metastore.storage.places import join
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import InvalidRequest

STATIC = "zoo.cfg"
DYNAMIC = "zoo.cfg.dynamic"
MYID = "myid"
_STORED = "version-2"
"""What ZooKeeper calls the directory of all that it stores."""
_SNAPSHOT = "snapshot."
"""How the files begin without which nothing is stored: a server writes the first one before it speaks to anybody."""
_LOG = "log."
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
_LINE_OF_BLANK_SERVERS = "db.autocreate="
"""With `false` a server without data has no part in an election before it has followed a leader and has his data."""
_TRUSTED_BLANK = "initialize"
"""A file in the directory of the data, by which a server without data has a part in it all the same."""


class Stored(msgspec.Struct, frozen=True):
    """What a directory knows of its server. `servers`: those of its ensemble, with which it starts, itself among them,
    or it would not start; empty where that cannot be read; None where no server was prepared. `version`: of that, as
    ZooKeeper has written it, 0 where the server has not seen an ensemble since it was prepared. `emptied`: it has run,
    and what it had stored is gone; `remains`: not all of it, so that ZooKeeper does not start there.
    """

    servers: tuple[Server, ...] | None = None
    version: int = 0
    emptied: bool = False
    remains: bool = False


def write_server_files(
    storage: Storage,
    directory: str,
    server: Server,
    members: Collection[Server],
    operator: str = "",
    *,
    follows: bool = False,
) -> None:
    """Make a server ready to be started in `directory`, which is made: it begins with `members`, and itself. `follows`:
    these are an ensemble that answers, and as long as the server has not its data, it elects nobody.

    A file of settings that is there is kept, but for the name of the dynamic file: ZooKeeper writes there what it has
    seen last, and a server that has not joined, or has left, is not in it and would not start. `operator`: who may
    change the ensemble, as `name:password`; the file gets a digest of it. Each file is written whole or not at all: a
    server that was half prepared is prepared again. Raises StorageUnavailable; ConfigurationError for an operator
    without a password; and InvalidRequest, before anything is written, for a server that could not be started, for a
    number or an address that is another member's, and for a directory with the data of another server, or of one of
    another ensemble.
    """
    require_preparable(server)
    _require_password(operator)
    require_same_place(members, server)
    require_apart([*(one for one in members if one.number != server.number), server])
    data = join(directory, "data")
    require_own(storage, directory, server)
    _require_same_ensemble(storage, directory, members)
    static, dynamic = join(directory, STATIC), join(directory, DYNAMIC)
    storage.create_directory(data, parents=True)
    # What a member is the ensemble says, and not who asks for it: one that votes does not begin as an observer.
    known = sorted({one.number: one for one in (server, *members)}.values())
    storage.replace_bytes(dynamic, _lines(str(member) for member in known))
    storage.replace_bytes(join(data, MYID), _lines([str(server.number)]))
    if storage.exists(static):
        lines = storage.read_bytes(static).decode(_ENCODING).splitlines()
        kept = [line for line in lines if not line.startswith((_LINE_OF_THE_DYNAMIC_FILE, _LINE_OF_BLANK_SERVERS))]
    else:
        settings = {"dataDir": data, **_SETTINGS}
        if operator:
            settings["DigestAuthenticationProvider.superDigest"] = digest_of(operator)
        kept = [f"{name}={in_properties(str(value))}" for name, value in settings.items()]
    if follows:
        storage.delete_file(join(data, _TRUSTED_BLANK))
        kept.append(f"{_LINE_OF_BLANK_SERVERS}false")
    storage.replace_bytes(static, _lines([*kept, f"{_LINE_OF_THE_DYNAMIC_FILE}{in_properties(dynamic)}"]))


def _require_password(operator: str) -> None:
    if operator and not all(operator.partition(":")[::2]):
        raise ConfigurationError(
            "[zookeeper] operator is no name with a password",
            hint="Give EPOCHLAKE__ZOOKEEPER__OPERATOR=super:PASSWORD",
        )


def require_own(storage: Storage, directory: str, server: Server) -> None:
    """Raise InvalidRequest for a directory with data of a server of another number: it would vote with what that one
    has promised.
    """
    said = _number_in(storage, directory)
    if said not in ("", str(server.number)):
        raise InvalidRequest(
            f"{directory} has the data of server {said[:20]}, and server {server.number} is to be prepared there",
            hint="Give another directory; or delete this one, if that server is gone for good",
        )


def _require_same_ensemble(storage: Storage, directory: str, members: Collection[Server]) -> None:
    """Raise InvalidRequest for data of an ensemble that has no member at any place of one that this server has known:
    what is stored there was never decided by these members.
    """
    known = stored(storage, directory).servers
    if not known or not members or not storage.exists(join(directory, "data", _STORED)):
        return
    if {(one.number, one.address) for one in known}.isdisjoint((one.number, one.address) for one in members):
        raise InvalidRequest(
            f"{directory} has the data of another ensemble: none of the servers that it knows is a member of this one",
            hint="Give another directory; or delete this one, if nobody needs that ensemble any more",
        )


def stored(storage: Storage, directory: str) -> Stored:
    """What a directory knows of its server. Raises StorageUnavailable."""
    static = join(directory, STATIC)
    settings = storage.read_bytes(static).decode(_ENCODING).splitlines() if storage.exists(static) else []
    named = [line for line in settings if line.startswith(_LINE_OF_THE_DYNAMIC_FILE)]
    # ZooKeeper writes a new one beside the one of before, and its name into the settings.
    dynamic = named[-1].rpartition("/")[2] if named else DYNAMIC
    names = _stored_names(storage, directory)
    has_run = bool(names) or dynamic != DYNAMIC
    emptied = has_run and not any(name.startswith(_SNAPSHOT) for name in names)
    remains = emptied and any(name.startswith(_LOG) for name in names)
    if not _number_in(storage, directory):
        return Stored(emptied=emptied, remains=remains)
    try:
        servers = parse_configuration(storage.read_bytes(join(directory, dynamic)).decode(_ENCODING)).servers
        version = int(dynamic.removeprefix(DYNAMIC).removeprefix(".") or "0", 16)
    except (MissingFile, InvalidRequest, ValueError):
        return Stored((), 0, emptied, remains)
    return Stored(servers, version, emptied, remains)


def _stored_names(storage: Storage, directory: str) -> list[str]:
    place = join(directory, "data", _STORED)
    return storage.list_names(place) if storage.exists(place) else []


def has_to_be_prepared(server: Server, there: Stored, ensemble: EnsembleConfiguration | None) -> bool:
    """Whether files are written before a server is started, or it starts with those that are there. Pure.

    `ensemble`: as it says itself; None where it does not answer. Then a server starts that was prepared, as an ensemble
    comes back when its servers do. Raises CoordinationUnavailable where nothing can be known without the ensemble;
    InvalidRequest for a number that is another member's; for a member that has lost its data, where nobody answers or
    some of it is left: with none it would vote against what it has promised. Beside an ensemble that answers it is
    prepared, and has no part in an election before it has followed. Also for a member that would be an ensemble of its
    own beside the one that answers; and for the data of an ensemble in whose place this one was set up.
    """
    knows_itself = any(one.as_role(server.role) == server for one in there.servers or ())
    if ensemble is None:
        if there.emptied:
            raise InvalidRequest(
                f"server {server.number} has lost its data, and the ensemble does not answer",
                hint="Start the others; where most of them are gone for good, set the ensemble up anew "
                "(docs/upkeep.md)",
            )
        if not knows_itself:
            raise CoordinationUnavailable(
                f"server {server.number} is to be prepared, and the ensemble does not answer",
                hint="Start the other servers; the first one of an ensemble is prepared by `epochlake metadata "
                "prepare-server --alone`",
            )
        return False
    require_same_place(ensemble.servers, server)
    if ensemble.find(server.number) is None:
        if there.version > ensemble.version:
            # Versions only grow: what it has promised to the ensemble of before this one keeps it from following.
            raise InvalidRequest(
                f"server {server.number} has the data of an ensemble in whose place this one was set up",
                hint="Delete its directory, and it begins anew",
            )
        return True
    if there.servers is None or there.emptied:
        if there.remains:
            raise _data_is_gone(server, ensemble)
        return True
    voters = {one.number for one in there.servers if one.votes}
    if voters == {server.number} != {one.number for one in ensemble.voters}:
        # An ensemble that was this server alone has become another one by its vote only: it would know of that.
        raise InvalidRequest(
            f"server {server.number} is a member of the ensemble, and in its directory it is one of its own",
            hint=f"Take it out by {_without(server, ensemble)}, and delete the directory; then it begins anew",
        )
    # What it has missed while it was away: with the members of then some that came back might be an ensemble again.
    is_behind = there.version < ensemble.version and there.servers != ensemble.servers
    return not knows_itself or is_behind


def require_data(storage: Storage, directory: str, server: Server, ensemble: EnsembleConfiguration) -> None:
    """Raise InvalidRequest for a member of an ensemble that answers, where nothing of it is stored."""
    if ensemble.find(server.number) is not None and not _stored_names(storage, directory):
        raise _data_is_gone(server, ensemble)


def _data_is_gone(server: Server, ensemble: EnsembleConfiguration) -> InvalidRequest:
    return InvalidRequest(
        f"server {server.number} is a member of the ensemble, and its data is gone",
        hint=f"Take it out by {_without(server, ensemble)}, and delete what is left of its data; then it begins anew",
    )


def _without(server: Server, ensemble: EnsembleConfiguration) -> str:
    """The command by which an ensemble goes on without one of its servers."""
    others = [one for one in ensemble.servers if one.number != server.number]
    left = [f"{one.number}" if one.votes else f"{one.number}:observer" for one in others]
    return f"`epochlake metadata reconfigure --coordination {' '.join(left)}`"


def _number_in(storage: Storage, directory: str) -> str:
    """The number of the server that a directory was prepared for; empty: none, or what says so was torn."""
    myid = join(directory, "data", MYID)
    return storage.read_bytes(myid).decode(_ENCODING).strip() if storage.exists(myid) else ""


def digest_of(operator: str) -> str:
    """`name:password` as ZooKeeper's superDigest has it."""
    name = operator.partition(":")[0]
    return f"{name}:{base64.b64encode(hashlib.sha1(operator.encode()).digest()).decode()}"


def start_command(directory: str, java: str = "java", options: Iterable[str] = ()) -> list[str]:
    """What starts the server of a directory. `options`: of Java."""
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [java, *options, "-cp", f"{zookeeper_jars()}/*", main, join(directory, STATIC)]


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(_ENCODING)
