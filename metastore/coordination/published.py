"""Where the ensemble of a cluster is, as the cluster publishes it below its root, and how the ensemble proves to be it.

What is published names the addresses of the servers and a *seal*, a word that was made up for it. The ensemble keeps
all seals that it was given (in the znode `IDENTITY`), and gets a new one before it is published. So an ensemble that
does not know the seal of what is published is another one, or went back to a state of before; one that knows it has all
that it had then.

Each publication is a document of its own, with the next number, which never changes: who comes late with an earlier
one finds its number taken. The newest that is whole counts. (docs/decisions/153-published-ensemble.md)
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from typing import Any

import msgspec
from epochlake.metastore.coordination.client import Coordination, Request
from epochlake.metastore.coordination.ensemble import EnsembleConfiguration, parse_configuration
from epochlake.metastore.coordination.publication import FORMAT, EnsembleIdentity, PublishedEnsemble
from epochlake.metastore.coordination.reconfiguring import CONFIGURATION
from epochlake.metastore.errors import CoordinationUnavailable, UnknownFormat
from epochlake.metastore.storage import failures
from epochlake.metastore.storage.numbered import numbers, path_of
from epochlake.metastore.storage.places import join
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.decoding import decodable
from epochlake.placement.errors import InvalidRequest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

logger = logging.getLogger(__name__)

IDENTITY = "/epochlake-ensemble-id"
"""The znode with the seals of an ensemble: one for the ensemble, however many clusters share it."""

KEPT_SEALS = 500
"""So many seals are remembered: a root that was restored from a backup is older than that only in name."""
KEPT_DOCUMENTS = 4
"""So many publications stay below the root: who has just listed them reads one of them."""
PUBLISH_SECONDS = 60.0

_TRIED, _TRIED_BYTES = "tried", 4096
"""What is written and deleted to see that there can be another publication, which is smaller."""
_LOOKS = 3
_encoder = msgspec.json.Encoder(order="sorted")


class WrongEnsemble(InvalidRequest):
    """The ensemble is not the one that the cluster has published."""


class NothingWhole(CoordinationUnavailable):
    """Something was published, and none of it can be read."""


class _Kept(msgspec.Struct, frozen=True):
    digest: str
    published: msgspec.Raw


def parse_identity(data: bytes) -> EnsembleIdentity:
    """What the znode holds. Raises UnknownFormat."""
    try:
        return msgspec.json.decode(data, type=decodable(EnsembleIdentity))
    except msgspec.MsgspecError as error:
        raise UnknownFormat(
            f"the znode {IDENTITY} was written by another version, or by somebody else: {error}",
            hint="Use the newest version",
        ) from error


def newest(storage: Storage, directory: str, cluster_id: str | None = None) -> PublishedEnsemble | None:
    """What was published last below a root, of what is whole; None where nothing was. `cluster_id`: what was published
    for another cluster is passed over, as where one root was copied over another; None: it is not known yet, and only
    what all documents agree on is believed.

    Raises StorageUnavailable, UnknownFormat, and CoordinationUnavailable where something was and none of it is whole,
    or where it is not known which cluster's counts.
    """
    there, others = list[int](), set[int]()
    for _ in range(_LOOKS):
        there = numbers(storage, directory)
        damaged, others, of_any = False, set[int](), list[PublishedEnsemble]()
        for number in reversed(there):
            path = path_of(directory, number)
            try:
                found = _decoded(storage.read_bytes(path), number)
                if cluster_id == found.cluster_id:
                    return found
                if cluster_id is None:
                    of_any.append(found)
                else:
                    others.add(number)
            except failures.MissingFile:
                continue  # newer ones have come, or what is older was taken away
            except ValueError as error:
                damaged = True
                logger.warning("%s is not what was written there, and is passed over: %s", path, error)
        if of_any:
            return _of_one_cluster(of_any, directory)
        if damaged or len(others) == len(there):
            break
    if len(others) == len(there):
        return None
    raise NothingWhole(
        f"what {directory} says of the ZooKeeper ensemble cannot be read",
        hint="Name the servers in [zookeeper] connect, and run `epochlake metadata reconfigure --coordination --adopt`",
    )


def _of_one_cluster(found: list[PublishedEnsemble], directory: str) -> PublishedEnsemble:
    """The first of them. Raises CoordinationUnavailable where they are of several clusters."""
    clusters = sorted({one.cluster_id for one in found})
    if len(clusters) > 1:
        raise CoordinationUnavailable(
            f"{directory} names the ZooKeeper ensembles of several clusters ({', '.join(clusters)}), and which of them "
            "this one is cannot be read from its log",
            hint="See `epochlake log verify`, and restore the log first",
        )
    return found[0]


def keep(storage: Storage, directory: str, published: PublishedEnsemble) -> bool:
    """Keep a publication below the root; False where another one has its number. Raises StorageUnavailable."""
    body = _encoder.encode(published)
    kept = _Kept(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
    storage.create_directory(directory)
    if not storage.put_if_absent(path_of(directory, published.number), msgspec.json.encode(kept)):
        return False
    for number in numbers(storage, directory):
        if number <= published.number - KEPT_DOCUMENTS:
            storage.delete_file(path_of(directory, number))
    return True


def publish(
    coordination: Coordination,
    storage: Storage,
    directory: str,
    cluster_id: str,
    *,
    adopt: bool = False,
    after: int | None = None,
    beyond: int = 0,
) -> PublishedEnsemble | None:
    """Publish the ensemble that a session leads to, where that is not published yet; what is published then.

    None where there is nothing to publish: a server alone, or one that its clients reach by other addresses than those
    that it knows itself by. `adopt`: also in place of another ensemble, which is gone for good; who adopts another
    one since then goes before it. `after`: the number of what was published last then; None: now. `beyond`: a number
    that others have seen.
    Raises WrongEnsemble, CoordinationUnavailable, NotAllowed, StorageUnavailable, UnknownFormat.
    """
    try:
        return _publish(coordination, storage, directory, cluster_id, adopt, after, beyond)
    except KazooException as error:
        raise CoordinationUnavailable(
            f"the ZooKeeper at {coordination.connect_string} answers what nobody has foreseen "
            f"({type(error).__name__}), and is not published"
        ) from error


def _publish(
    coordination: Coordination,
    storage: Storage,
    directory: str,
    cluster_id: str,
    adopt: bool,
    after: int | None,
    beyond: int,
) -> PublishedEnsemble | None:
    # Before anything else is looked at: whoever publishes from now on takes this number, and we do not put in its place
    # what we have seen before that. Numbers go on after what a root has lost, so that agents do not take it for old.
    after = last_number(storage, directory) if after is None else after
    number = 1 + max(after, beyond, 0 if coordination.guide is None else coordination.guide.number)
    try:
        now = _configuration(coordination)
    except InvalidRequest as error:  # groups, weights: it is kept by hand
        logger.info("the ZooKeeper ensemble is not published: %s", error)
        return None
    hosts, slash, chroot = coordination.connect_string.partition("/")
    if not now.connect or set(now.connect.split(",")).isdisjoint(hosts.split(",")):
        return None
    there = None if adopt else newest(storage, directory, cluster_id)
    if there is not None:
        found = _identity(coordination)[0]
        refusal = "it has never been published" if found is None else found.refusal(there)
        if refusal:
            raise WrongEnsemble(
                f"the ZooKeeper at {coordination.connect_string} is not this cluster's: {refusal}",
                hint="Where the published ensemble is gone for good, run `epochlake metadata reconfigure "
                "--coordination --adopt`",
            )
        if there.connect.partition("/")[2].strip("/") != chroot.strip("/"):
            raise WrongEnsemble(
                f"what this cluster keeps in ZooKeeper is published to be at {there.connect}, and this session keeps "
                f"it below /{chroot}: the two would not see each other",
                hint="Correct [zookeeper] connect; or move it there for good, by `epochlake metadata reconfigure "
                "--coordination --adopt`, and start every process again",
            )
        if there.connect == now.connect + slash + chroot and int(there.version, 16) >= now.version:
            return there
    _require_writable(storage, directory)
    sealed = _sealed(coordination, "" if there is None else there.seal)
    made = PublishedEnsemble(
        number=number,
        cluster_id=cluster_id,
        ensemble=sealed.ensemble,
        seal=sealed.seals[-1],
        connect=now.connect + slash + chroot,
        version=f"{now.version:x}",
    )
    keep(storage, directory, made)
    counts = newest(storage, directory, cluster_id)
    if counts == made:
        logger.info("the ZooKeeper ensemble is published: %s", made.connect)
    elif adopt and (counts is None or _place_of(counts) != _place_of(made)):
        where = "nowhere" if counts is None else counts.connect
        raise WrongEnsemble(
            f"somebody else has published another ensemble meanwhile, at {where}, and that at "
            f"{coordination.connect_string} was not adopted",
            hint="See which of them it is to be, by `epochlake metadata describe --coordination`, and adopt it again",
        )
    # What somebody else who has published at the same time has not seen the next look finds.
    return counts


def _place_of(published: PublishedEnsemble) -> tuple[str, str]:
    """The ensemble, and the chroot below which the cluster keeps what it keeps there."""
    return published.ensemble, published.connect.partition("/")[2].strip("/")


def _require_writable(storage: Storage, directory: str) -> None:
    """Raise StorageUnavailable where nothing can be kept: before the ensemble gets a seal that nobody would ask for, as
    it would once a minute, until those that are asked for were forgotten.
    """
    storage.create_directory(directory)
    path = join(directory, _TRIED)
    storage.delete_file(path)
    storage.put_if_absent(path, bytes(_TRIED_BYTES))
    storage.delete_file(path)


def _configuration(coordination: Coordination) -> EnsembleConfiguration:
    value = coordination.barrier(CONFIGURATION, PUBLISH_SECONDS)
    return parse_configuration("" if value is None else value.data.decode())


def _identity(coordination: Coordination) -> tuple[EnsembleIdentity | None, int | None]:
    """The identity of an ensemble and the version of its znode; None where it has none. An empty znode says nothing: an
    operator makes it, where clusters may make none at the top.
    """
    value = coordination.barrier(IDENTITY, PUBLISH_SECONDS)
    if value is None:
        return None, None
    return parse_identity(value.data) if value.data else None, value.version


def with_seal(found: EnsembleIdentity, seal: str, asked_for: str) -> EnsembleIdentity:
    """An identity with one seal more, which is the last. `asked_for` is not forgotten for it."""
    kept = found.seals[1 - KEPT_SEALS :]
    if asked_for in found.seals and asked_for not in kept:
        kept = (asked_for, *kept[1:])
    return EnsembleIdentity(found.ensemble, (*kept, seal))


def _sealed(coordination: Coordination, asked_for: str) -> EnsembleIdentity:
    """The identity of an ensemble, with one seal more, which is the last. `asked_for`: that of what is published."""
    seal = uuid.uuid4().hex
    while True:
        found, version = _identity(coordination)
        if found is not None and found.seals[-1:] == (seal,):
            return found  # written by a request whose answer was lost
        made = EnsembleIdentity(uuid.uuid4().hex, (seal,)) if found is None else with_seal(found, seal, asked_for)
        try:
            coordination.call(f"write {IDENTITY}", _writing(msgspec.json.encode(made), version))
            return made
        except (BadVersionError, NoNodeError, NodeExistsError):
            continue


def _writing(data: bytes, version: int | None) -> Request:
    def request(client: KazooClient) -> Any:
        if version is None:
            return client.create_async(IDENTITY, data)
        return client.set_async(IDENTITY, data, version)

    return request


def _decoded(data: bytes, number: int) -> PublishedEnsemble:
    """Raises UnknownFormat; ValueError for what is not what was written."""
    kept = msgspec.json.decode(data, type=decodable(_Kept))
    if hashlib.sha256(kept.published).hexdigest() != kept.digest:
        raise ValueError("its digest is another one")
    found = msgspec.json.decode(kept.published, type=decodable(PublishedEnsemble))
    if found.format > FORMAT:
        raise UnknownFormat(
            f"a newer version has published the ZooKeeper ensemble (format {found.format})",
            hint="Use the newest version",
        )
    if found.number != number:
        raise ValueError(f"it is number {found.number}")
    return found


def last_number(storage: Storage, directory: str) -> int:
    """The number of what was published last, whole or not and of whatever cluster; 0 where nothing was."""
    return max(numbers(storage, directory), default=0)
