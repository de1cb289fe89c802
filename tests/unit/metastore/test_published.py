"""What is published of an ensemble below a root: the newest that is whole counts, and nothing is written over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from epochlake.metastore.configuration import AUTO, Configuration, ZooKeeperSettings
from epochlake.metastore.coordination import published
from epochlake.metastore.coordination.client import Coordination, Request, Value
from epochlake.metastore.coordination.publication import EnsembleIdentity, Heard, PublishedEnsemble
from epochlake.metastore.coordination.published import (
    KEPT_DOCUMENTS,
    KEPT_SEALS,
    WrongEnsemble,
    keep,
    newest,
    parse_identity,
    publish,
    with_seal,
)
from epochlake.metastore.coordination.reconfiguring import CONFIGURATION
from epochlake.metastore.coordination.whereabouts import Whereabouts
from epochlake.metastore.errors import CoordinationUnavailable, UnknownFormat
from epochlake.metastore.root import Root
from epochlake.placement.errors import EpochlakeError
from kazoo.client import KazooClient

from tests.support.storages import STORAGE


def publication(number: int, connect: str = "zk1:2181", **more: object) -> PublishedEnsemble:
    made = PublishedEnsemble(number, "c1", "e1", f"seal-{number}", connect, "100000000")
    return msgspec.structs.replace(made, **more)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(str(tmp_path))


def test_who_comes_late_finds_its_number_taken_and_old_ones_go(root: Root) -> None:
    assert newest(STORAGE, root.coordination) is None
    for number in range(1, 8):
        assert keep(STORAGE, root.coordination, publication(number))
    assert not keep(STORAGE, root.coordination, publication(7, "late:2181"))
    assert newest(STORAGE, root.coordination) == publication(7)
    assert len(list(Path(root.coordination).iterdir())) == KEPT_DOCUMENTS


def test_a_publication_that_rots_is_passed_over_wherever_a_byte_changes(root: Root) -> None:
    assert keep(STORAGE, root.coordination, publication(1))
    assert keep(STORAGE, root.coordination, publication(2, "zk2:2181"))
    path = max(Path(root.coordination).iterdir())
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert newest(STORAGE, root.coordination) in (publication(1), publication(2, "zk2:2181"))
    for at in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:at])
        assert newest(STORAGE, root.coordination) == publication(1)
    min(Path(root.coordination).iterdir()).write_bytes(b"")
    with pytest.raises(CoordinationUnavailable, match="cannot be read"):
        newest(STORAGE, root.coordination)


def test_what_a_newer_version_has_published_is_refused_and_not_passed_over(root: Root) -> None:
    assert keep(STORAGE, root.coordination, publication(1))
    assert keep(STORAGE, root.coordination, publication(2, format=2))
    with pytest.raises(UnknownFormat, match="a newer version has published"):
        newest(STORAGE, root.coordination)


def test_an_ensemble_is_the_published_one_when_it_knows_its_seal() -> None:
    published = publication(7)
    assert EnsembleIdentity("e1", ("seal-6", "seal-7", "seal-8")).refusal(published) == ""
    assert "went back" in EnsembleIdentity("e1", ("seal-5", "seal-6")).refusal(published)
    assert "another ensemble" in EnsembleIdentity("e2", ("seal-1",)).refusal(published)


def test_what_was_published_for_another_cluster_is_passed_over(root: Root) -> None:
    assert keep(STORAGE, root.coordination, publication(1))
    assert keep(STORAGE, root.coordination, publication(2, "theirs:2181", cluster_id="c2"))
    assert newest(STORAGE, root.coordination, "c1") == publication(1)
    assert newest(STORAGE, root.coordination, "c3") is None
    with pytest.raises(CoordinationUnavailable, match=r"of several clusters \(c1, c2\)"):
        newest(STORAGE, root.coordination)
    known = of(root, "seed:2181")
    assert (known.first(), known.published) == ("zk1:2181", publication(1))
    # One's own that cannot be read is not taken for none, either: nobody would have to prove anything.
    min(Path(root.coordination).iterdir()).write_bytes(b"")
    with pytest.raises(CoordinationUnavailable, match="cannot be read"):
        newest(STORAGE, root.coordination, "c1")


def test_the_seal_that_is_asked_for_is_never_forgotten() -> None:
    """However many are made without a publication, as by a process that is killed again and again."""
    asked_for = publication(1)
    identity = EnsembleIdentity("e1", (asked_for.seal,))
    for number in range(2, 2 * KEPT_SEALS):
        identity = with_seal(identity, f"seal-{number}", asked_for.seal)
        assert not identity.refusal(asked_for)
        assert identity.seals[-1] == f"seal-{number}"
    assert len(identity.seals) == len(set(identity.seals)) == KEPT_SEALS
    assert asked_for.seal not in with_seal(identity, "last", "another").seals


class Asked:
    """An ensemble, as far as a publication asks it, and how often it was given a seal."""

    guide = None

    def __init__(self, host: str = "zk1") -> None:
        self.connect_string = f"{host}:2181"
        self.seals = 0
        self._configuration = f"server.1={host}:1:2:participant;{host}:2181\nversion=1"
        self._identity: Value | None = None

    def barrier(self, path: str, timeout: float) -> Value | None:
        return Value(self._configuration.encode(), 0) if path == CONFIGURATION else self._identity

    def call(self, asked: str, request: Request) -> None:
        self.seals += 1
        request(cast("KazooClient", self))

    @property
    def identity(self) -> bytes:
        assert self._identity is not None
        return self._identity.data

    def change(self) -> None:
        """Its servers change."""
        self._configuration = self._configuration.replace("version=1", "version=2")

    def create_async(self, path: str, data: bytes) -> None:
        assert self._identity is None
        self._identity = Value(data, 0)

    def set_async(self, path: str, data: bytes, version: int) -> None:
        assert self._identity is not None
        assert self._identity.version == version
        self._identity = Value(data, version + 1)


def publishes(ensemble: Asked, root: Root, *, adopt: bool = False, after: int | None = None) -> PublishedEnsemble:
    made = publish(cast("Coordination", ensemble), STORAGE, root.coordination, "c1", adopt=adopt, after=after)
    assert made is not None
    return made


class CutOff(Exception):
    """The process was killed here."""


Step = tuple[str, int]
ADOPTING: tuple[Step, ...] = tuple(
    (name, 1) for name in ("_configuration", "_require_writable", "_sealed", "keep", "newest")
)
PUBLISHING: tuple[Step, ...] = (ADOPTING[0], ("newest", 1), *ADOPTING[1:-1], ("newest", 2))
"""What a publication does, one after the other, and for which time; at the end it looks whether its own one counts."""


def at(step: Step, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen once, when a publication comes to a step."""
    name, left = step
    doing = getattr(published, name)

    def first(*arguments: Any, **named: Any) -> object:
        nonlocal left
        left -= 1
        if not left:
            happens()
        return doing(*arguments, **named)

    monkeypatch.setattr(published, name, first)


@pytest.mark.parametrize("step", ADOPTING, ids=str)
def test_who_adopts_an_ensemble_and_stood_still_anywhere_takes_nothing_from_who_has_adopted_another_one(
    root: Root, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    gone, slow, quick = Asked("zk1"), Asked("zk2"), Asked("zk3")
    first = publishes(gone, root)
    adopted: list[PublishedEnsemble] = []
    with monkeypatch.context() as patched:
        at(step, patched, lambda: adopted.append(publishes(quick, root, adopt=True)))
        with pytest.raises(WrongEnsemble, match="somebody else has published another ensemble meanwhile, at zk3:2181"):
            publishes(slow, root, adopt=True, after=first.number)
    assert newest(STORAGE, root.coordination, "c1") == adopted[0]
    # It was told, and says so again.
    assert publishes(slow, root, adopt=True).connect == slow.connect_string
    with pytest.raises(WrongEnsemble):
        publishes(quick, root)


@pytest.mark.parametrize("step", PUBLISHING, ids=str)
def test_who_publishes_and_stood_still_anywhere_takes_nothing_from_who_has_adopted_another_ensemble(
    root: Root, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    moved, other = Asked("zk1"), Asked("zk2")
    publishes(moved, root)
    moved.change()
    adopted: list[PublishedEnsemble] = []
    with monkeypatch.context() as patched:
        at(step, patched, lambda: adopted.append(publishes(other, root, adopt=True)))
        with suppress(WrongEnsemble):  # as it finds out before the end, or at the next look
            publishes(moved, root)
    assert newest(STORAGE, root.coordination, "c1") == adopted[0]
    with pytest.raises(WrongEnsemble):
        publishes(moved, root)


@pytest.mark.parametrize(
    ("steps", "step"),
    [(steps, step) for steps in (ADOPTING, PUBLISHING) for step in steps],
    ids=lambda value: "adopts" if value == ADOPTING else "publishes" if value == PUBLISHING else str(value),
)
def test_who_is_killed_while_it_publishes_leaves_what_was_or_what_is_to_be(
    root: Root, monkeypatch: pytest.MonkeyPatch, steps: tuple[Step, ...], step: Step
) -> None:
    ensemble = Asked("zk1")
    before = publishes(ensemble, root)
    ensemble.change()

    def killed() -> None:
        raise CutOff

    with monkeypatch.context() as patched:
        at(step, patched, killed)
        with pytest.raises(CutOff):
            publishes(ensemble, root, adopt=steps == ADOPTING)
    left = newest(STORAGE, root.coordination, "c1")
    assert left is not None
    assert left.number == before.number + (step == steps[-1])
    assert parse_identity(ensemble.identity).refusal(left) == ""
    again = publishes(ensemble, root, adopt=steps == ADOPTING)
    assert newest(STORAGE, root.coordination, "c1") == again
    assert again.version == "2"


def test_numbers_go_on_after_what_a_root_has_lost(root: Root) -> None:
    """Agents that have seen those of before would take the new one for older."""
    ensemble = Asked()
    ensemble.guide = of(root, AUTO)  # type: ignore[assignment]
    assert [publishes(ensemble, root, adopt=True).number for _ in range(3)] == [1, 2, 3]
    known = of(root, AUTO)
    assert known.number == 3
    for path in Path(root.coordination).iterdir():
        path.unlink()
    ensemble.guide = known  # type: ignore[assignment]
    assert publishes(ensemble, root).number == 4
    made = publish(cast("Coordination", Asked()), STORAGE, root.coordination, "c1", adopt=True, beyond=8)
    assert made is not None
    assert made.number == 9


def test_an_ensemble_gets_no_seal_where_nothing_can_be_published(root: Root) -> None:
    """A coordinator tries it every minute, and those that are asked for would be forgotten for the new ones."""
    ensemble = Asked()
    Path(root.coordination).write_bytes(b"not a directory")
    with pytest.raises(EpochlakeError):
        publish(cast("Coordination", ensemble), STORAGE, root.coordination, "c1")
    assert ensemble.seals == 0
    Path(root.coordination).unlink()
    made = publish(cast("Coordination", ensemble), STORAGE, root.coordination, "c1")
    assert (made, ensemble.seals) == (newest(STORAGE, root.coordination, "c1"), 1)
    assert [path.name for path in Path(root.coordination).iterdir()] == [f"{1:020}.json"]


def of(root: Root, connect: str, cluster: str | None = "c1") -> Whereabouts:
    configuration = Configuration(root=root.uri, zookeeper=ZooKeeperSettings(connect=connect))
    return Whereabouts(configuration, STORAGE, cluster)


def test_published_addresses_come_first_and_the_configured_ones_are_a_second_thought(root: Root) -> None:
    assert (of(root, "seed:2181/below").first(), of(root, "seed:2181").refusal(None)) == ("seed:2181/below", "")
    with pytest.raises(CoordinationUnavailable, match="was not published"):
        of(root, AUTO).first()
    known = of(root, "seed:2181")
    assert keep(STORAGE, root.coordination, publication(1, "zk1:2181,zk2:2181"))
    assert "never been published" in known.refusal(None), "what was published meanwhile has to be proved"
    assert known.look() == "zk1:2181,zk2:2181,seed:2181"
    assert of(root, "seed:2181").first() == of(root, AUTO).look() == "zk1:2181,zk2:2181"
    assert of(root, "seed:2181", "another cluster").first() == "seed:2181"
    # A root that is emptied, or goes back, takes nothing of that away.
    min(Path(root.coordination).iterdir()).unlink()
    assert known.look() == "zk1:2181,zk2:2181,seed:2181"


def test_what_a_server_has_to_know_is_read_when_it_answers(root: Root) -> None:
    """As for a process that was paused while the ensemble went on, and one of its servers was restored."""
    assert keep(STORAGE, root.coordination, publication(1))
    restored = msgspec.json.encode(EnsembleIdentity("e1", ("seal-1",)))
    paused = of(root, AUTO)
    assert paused.refusal(restored) == ""
    assert keep(STORAGE, root.coordination, publication(2))
    assert "went back" in paused.refusal(restored)
    assert paused.refusal(msgspec.json.encode(EnsembleIdentity("e1", ("seal-1", "seal-2")))) == ""
    # Nothing that is whole takes nothing away; what a newer version has published, or what is not read, may be news.
    for path in Path(root.coordination).iterdir():
        path.write_bytes(b"torn")
    assert "went back" in paused.refusal(restored)
    assert keep(STORAGE, root.coordination, publication(3, format=2))
    assert "cannot be read: a newer version" in paused.refusal(restored)


def test_others_are_asked_when_nobody_answers_and_need_not_know(root: Root) -> None:
    said = [
        Heard(publication(2, "zk2:2181"), ("zk5:2181",)),
        Heard(publication(3, "zk3:2181"), ("zk4:2181",)),
        Heard(publication(9, "theirs:2181", cluster_id="c2"), ("theirs2:2181",)),
    ]

    def others() -> list[Heard]:
        if not said:
            raise EpochlakeError("no agent answers")
        return said

    configuration = Configuration(root=root.uri, zookeeper=ZooKeeperSettings(connect=AUTO))
    known = Whereabouts(configuration, STORAGE, "c1", others)
    assert (known.first(), known.published) == ("zk3:2181,zk5:2181,zk4:2181", publication(3, "zk3:2181"))
    with pytest.raises(CoordinationUnavailable, match="was not published"):
        Whereabouts(configuration, STORAGE, None, others).first()
    # What the root says goes before, also where it has gone back.
    assert keep(STORAGE, root.coordination, publication(1))
    everywhere = "zk1:2181,zk3:2181,zk5:2181,zk4:2181"
    assert (known.look(), known.published) == (everywhere, publication(1))
    said.clear()
    assert known.look() == everywhere, "what was heard once is not forgotten"
    said.append(Heard(publication(3, "zk5:2181", cluster_id="another")))
    assert known.look() == everywhere


def test_it_is_published_in_an_object_store_too() -> None:
    STORAGE.create_directory("mock://published/root", parents=True)
    root = Root("mock://published/root")
    assert newest(STORAGE, root.coordination) is None
    assert keep(STORAGE, root.coordination, publication(1))
    assert not keep(STORAGE, root.coordination, publication(1, "late:2181"))
    assert newest(STORAGE, root.coordination) == publication(1)
