"""A model of tablets in transition, small enough to look at every state that it can get into.

Whatever may happen next, happens. From a state all actions are tried that the rules allow: a coordinator
fences, prepares, streams, cleans up, commits the next stage or goes back on an error; an older coordinator, paused
before one of its side effects, does it now; a writer commits to one more replica by the view that it planned by, or
looks at the newest one; a volume dies, or an operator declares it lost although it answers who does not know.

What stages mean and when a barrier is passed is asked of production
(`placement/tablets/transitions.py`, `placement/consistency.py`); what replicas refuse, and what a coordinator does in
which stage, are the `Rules` here.

One write is followed, to the first tablet: on which volumes it is, and whether it was acknowledged. Only the order of
epochs matters, so they are numbered anew in every state: that makes states that differ in nothing else one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epochlake.placement import consistency
from epochlake.placement.consistency import BarrierLevel, ConsistencyLevel
from epochlake.placement.tablets import transitions
from epochlake.placement.tablets.transitions import Kind, Stage

Volumes = tuple[int, ...]
Numbers = dict[int, int]


class Rules(NamedTuple):
    """What replicas and coordinators keep to; each can be broken on purpose.

    `first_and_last_have_barriers` and `streaming_waits_for_a_barrier` are where operations on the ring differ: PREPARE
    and FINISH have no barrier of their own, and START is acknowledged before anything is streamed, as
    `write_both_read_old` is for a tablet.
    """

    fences_refuse: bool = True
    sessions_refuse: bool = True
    pending_is_required: bool = True
    pending_is_prepared: bool = True
    preparing_is_marked: bool = True
    streams_are_fenced: bool = True
    old_acknowledgements_are_forgotten: bool = True
    first_and_last_have_barriers: bool = True
    streaming_waits_for_a_barrier: bool = False
    lost_is_not_fenced: bool = True


class Begin(NamedTuple):
    """A transition that may begin; whether errors come in it."""

    kind: Kind
    leaving: int
    pending: int
    errors: bool = True


class Scenario(NamedTuple):
    """Tablets by their replicas, each with the transitions that it may go through one after the other; how many side
    effects a paused coordinator does late; volumes of which one may die; volumes of which one may be declared lost, and
    is back for who planned before; and whether the write was acknowledged before anything began, or is planned in one
    stage only, instead of at any time (that leaves room for more of the rest)."""

    tablets: tuple[tuple[Volumes, tuple[Begin, ...]], ...]
    late: int = 1
    mortal: Volumes = ()
    declared: Volumes = ()
    written: bool = False
    planned_in: Stage | None = None


class Move(NamedTuple):
    """A transition: `epoch` is that of its stage, `done` says that the stage's side effect is."""

    kind: Kind
    stage: Stage
    leaving: int
    pending: int
    started: int
    epoch: int
    error: bool = False
    done: bool = False

    @property
    def session(self) -> int | None:
        return self.epoch if self.stage in transitions.SESSION_STAGES else None


class Tablet(NamedTuple):
    replicas: Volumes
    move: Move | None
    begun: int

    @property
    def old_and_new(self) -> tuple[Volumes, Volumes]:
        if self.move is None:
            return self.replicas, self.replicas
        leaving, pending = self.move.leaving, self.move.pending
        return self.replicas, tuple(pending if volume == leaving else volume for volume in self.replicas)

    def reads(self) -> Volumes:
        return self.replicas if self.move is None else transitions.read_replicas(self.move.stage, *self.old_and_new)

    def write_sets(self) -> tuple[Volumes, ...]:
        if self.move is None:
            return (self.replicas,)
        return transitions.write_sets(self.move.stage, *self.old_and_new)


class Since(NamedTuple):
    """As in metastore/metadata/placements.py: an acknowledgement stands while this stays, or for a lasting replica."""

    replicas: Volumes
    placed: int
    started: int | None


class Writer(NamedTuple):
    """`planned` at an epoch, to write to the volumes `due`; `acknowledged` by volumes, of which it knew `Since`."""

    planned: int
    due: Volumes
    since: Since
    acknowledged: frozenset[tuple[int, Since]] = frozenset()


class Late(NamedTuple):
    """A side effect that a paused coordinator is about to do: on behalf of tablet `of` and its transition `started`."""

    what: str
    of: int
    started: int
    volume: int
    epoch: int
    session: int | None
    brings: bool


class View(NamedTuple):
    """By which replicas it was read before the epoch `end`, and which of them were declared lost then."""

    end: int
    reads: Volumes
    lost: frozenset[int]


class State(NamedTuple):
    epoch: int
    placed: int
    tablets: tuple[Tablet, ...]
    fences: Volumes
    sessions: tuple[frozenset[int], ...]
    have: frozenset[int]
    writer: Writer | None
    acknowledged: bool
    late: Late | None
    late_left: int
    dead: frozenset[int]
    lost: frozenset[int]
    views: tuple[View, ...]


class Broken(AssertionError):
    """Something that must always hold does not, and how it came to that."""


KEPT = Rules()
NONE = frozenset[int]()


def explore(scenario: Scenario, rules: Rules = KEPT) -> dict[str, int]:
    """Look at every state that the scenario can get into; how many there are, and how many of them are ends.

    Raises `Broken` with the actions that lead to a state in which an invariant does not hold, or from which the
    transitions cannot end any more.
    """
    # Seen states have numbers: of a state each look-up costs the hash of all that is in it.
    first = _numbered_anew(rules, _beginning(scenario))
    number_of, states, came_from = {first: 0}, [first], [(-1, "")]
    leads_to: list[list[int]] = []
    for number, state in enumerate(states):  # it grows meanwhile
        wrong = _wrong(state)
        if wrong:
            raise Broken(f"{wrong}: {_path(came_from, number)}")
        following = []
        for action, after in _actions(scenario, rules, state):
            if action.startswith("!"):
                raise Broken(f"{action[1:]}: {_path(came_from, number)}")
            then = _numbered_anew(rules, after)
            found = number_of.setdefault(then, len(states))
            if found == len(states):
                states.append(then)
                came_from.append((number, action))
            following.append(found)
        leads_to.append(following)
    ends = [number for number, state in enumerate(states) if all(tablet.move is None for tablet in state.tablets)]
    stuck = {*range(len(states))} - _leading_to(ends, leads_to)
    if stuck:
        raise Broken(f"the transitions never end: {_path(came_from, min(stuck))}")
    began = first.tablets[0].replicas
    moved = sum(states[end].tablets[0].replicas != began for end in ends)
    if not moved:
        raise Broken("no transition ever comes to its end in the new replicas")
    return {"states": len(states), "ends": len(ends), "moved": moved}


def _beginning(scenario: Scenario) -> State:
    volumes = 1 + max(v for replicas, begins in scenario.tablets for v in (*replicas, *(b.pending for b in begins)))
    tablets = tuple(Tablet(replicas, None, 0) for replicas, _ in scenario.tablets)
    nothing = (frozenset[int](),) * volumes
    return State(
        epoch=1,
        placed=0,
        tablets=tablets,
        fences=(0,) * volumes,
        sessions=nothing,
        have=frozenset(tablets[0].replicas if scenario.written else ()),
        writer=None,
        acknowledged=scenario.written,
        late=None,
        late_left=scenario.late,
        dead=frozenset(),
        lost=frozenset(),
        views=(),
    )


# --- what must hold -------------------------------------------------------------------------------------------------


def _wrong(state: State) -> str | None:
    """What does not hold in a state."""
    followed = state.tablets[0]
    if followed.move is None and not state.have - state.lost <= {*followed.replicas}:
        return f"INV-TABL-1: rows of a tablet at rest are on {sorted(state.have - {*followed.replicas})}"
    open_now = {tablet.move.session for tablet in state.tablets if tablet.move is not None}
    resting = all(tablet.move is None for tablet in state.tablets)
    for volume, sessions in enumerate(state.sessions):
        if resting and sessions - open_now and volume not in state.dead | state.lost:
            return f"a session stays open on {volume}"
    if state.acknowledged:
        for view in (*state.views, View(state.epoch + 1, followed.reads(), state.lost)):
            missing = [volume for volume in _readable(state, view) if volume not in state.have]
            if len(missing) >= consistency.majority(len(view.reads)):
                return f"an acknowledged write is lost to a read quorum of {missing}"
    return None


def _leading_to(ends: Sequence[int], leads_to: Sequence[Sequence[int]]) -> set[int]:
    comes_from: list[list[int]] = [[] for _ in leads_to]
    for state, following in enumerate(leads_to):
        for then in following:
            comes_from[then].append(state)
    found, waiting = set(ends), list(ends)
    while waiting:
        for state in comes_from[waiting.pop()]:
            if state not in found:
                found.add(state)
                waiting.append(state)
    return found


def _path(came_from: Sequence[tuple[int, str]], state: int) -> str:
    actions = []
    while state:
        state, action = came_from[state]
        actions.append(action)
    return ", ".join(reversed(actions))


# --- what may happen ------------------------------------------------------------------------------------------------


def _actions(scenario: Scenario, rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    for number, tablet in enumerate(state.tablets):
        yield from _of_tablet(scenario, rules, state, number, tablet)
    for volume in {v for tablet in state.tablets if tablet.move for side in tablet.old_and_new for v in side}:
        fenced = _fenced(state, volume)
        if volume not in state.dead | state.lost and fenced != state:
            yield f"fence {volume}", fenced
    yield from _of_writer(scenario, rules, state)
    if state.late is not None:
        yield from _late(rules, state, state.late)
    for volume in scenario.mortal if not state.dead else ():
        yield f"{volume} dies", state._replace(dead=frozenset((volume,)), have=state.have - {volume})
    for volume in scenario.declared if not state.lost else ():
        declared = _committed(state, 0, state.tablets[0])._replace(lost=frozenset((volume,)))
        yield f"{volume} is declared lost", _read_until_now(state, declared)


def _of_tablet(
    scenario: Scenario, rules: Rules, state: State, number: int, tablet: Tablet
) -> Iterator[tuple[str, State]]:
    move = tablet.move
    if move is None:
        begins = scenario.tablets[number][1]
        if tablet.begun < len(begins) and _may_begin(state, tablet, begins[tablet.begun]):
            begin = begins[tablet.begun]
            stage = Stage.ALLOW_WRITE_BOTH_READ_OLD
            begun = Move(begin.kind, stage, begin.leaving, begin.pending, state.epoch + 1, state.epoch + 1)
            yield f"{number} begins", _committed(state, number, tablet._replace(move=begun, begun=tablet.begun + 1))
        return
    if transitions.FORWARD[move.stage] is None:
        yield f"{number} ends", _ended(state, number, tablet, move)
        return
    effect = _effect(rules, state, number, tablet, move)
    if effect is not None and not move.done:
        after = None if effect.volume in state.lost else _done(rules, state, effect)
        if after is not None:
            yield (
                f"{number} {effect.what} on {effect.volume}",
                _with_tablet(after, number, tablet._replace(move=move._replace(done=True))),
            )
        if state.late is None and state.late_left:
            yield f"{number} is paused before it {effect.what}", state._replace(late=effect)
    following = _next_stage(rules, state, tablet, move)
    if following is not None:
        yield f"{number} to {following}", _at_stage(state, number, tablet, move, following)
    fails = scenario.tablets[number][1][tablet.begun - 1].errors and not move.error
    if fails and move.stage in transitions.BACKWARD and _may_go_back(state, tablet, move):
        back = transitions.BACKWARD[move.stage]
        yield f"{number} fails, to {back}", _at_stage(state, number, tablet, move._replace(error=True), back)


def _may_begin(state: State, tablet: Tablet, begin: Begin) -> bool:
    alive = begin.pending not in state.dead | state.lost
    return alive and begin.leaving in tablet.replicas and begin.pending not in tablet.replicas


def _may_go_back(state: State, tablet: Tablet, move: Move) -> bool:
    if move.stage is not Stage.WRITE_BOTH_READ_NEW:
        return True
    fenced = _fenced_at(state, move.epoch)
    return transitions.goes_back(*(sum(volume not in fenced for volume in side) for side in tablet.old_and_new))


def _next_stage(rules: Rules, state: State, tablet: Tablet, move: Move) -> Stage | None:
    """The stage that a coordinator commits now; None where it has to wait."""
    stage, going_on = move.stage, not move.error
    if stage is Stage.WRITE_BOTH_READ_OLD and move.error:
        return transitions.BACKWARD[stage] if _acknowledged(rules, state, tablet, move, required=False) else None
    if stage is Stage.ALLOW_WRITE_BOTH_READ_OLD:
        if rules.pending_is_prepared and not move.done:
            return None
        if not rules.first_and_last_have_barriers:
            return transitions.FORWARD[stage]
    if stage is Stage.USE_NEW and not rules.first_and_last_have_barriers:
        return transitions.FORWARD[stage]
    if stage in (Stage.STREAMING, Stage.CLEANUP, Stage.CLEANUP_TARGET):
        volume = {Stage.CLEANUP: move.leaving, Stage.CLEANUP_TARGET: move.pending}.get(stage)
        return transitions.FORWARD[stage] if move.done or volume in state.dead | state.lost else None
    required = rules.pending_is_required and going_on and stage is not Stage.USE_NEW
    return transitions.FORWARD[stage] if _acknowledged(rules, state, tablet, move, required=required) else None


def _acknowledged(rules: Rules, state: State, tablet: Tablet, move: Move, *, required: bool) -> bool:
    fenced = _fenced_at(state, move.epoch)
    if required and move.pending not in fenced:
        return False
    old, new = tablet.old_and_new
    lost = state.lost if rules.lost_is_not_fenced else frozenset[int]()
    fenced = fenced | state.dead | (state.lost - lost)
    return consistency.barrier_passed(BarrierLevel.QUORUM, old, new, fenced, lambda _: "dc1", lost)


def _effect(rules: Rules, state: State, number: int, tablet: Tablet, move: Move) -> Late | None:
    """The side effect of the tablet's stage; None where it has none, or cannot have it now."""
    match move.stage:
        case Stage.ALLOW_WRITE_BOTH_READ_OLD:
            return Late("prepares", number, move.started, move.pending, state.epoch, None, False)
        case Stage.CLEANUP_TARGET:
            return Late("drops", number, move.started, move.pending, state.epoch, None, False)
        case Stage.CLEANUP:
            return Late("drops", number, move.started, move.leaving, state.epoch, None, False)
        case Stage.STREAMING:
            sources = _sources(state, tablet, move)
            waits = rules.streaming_waits_for_a_barrier and not _acknowledged(rules, state, tablet, move, required=True)
            if sources is None or waits:
                return None
            brings = number == 0 and bool(sources & state.have)
            return Late("streams", number, move.started, move.pending, state.epoch, move.session, brings)
    return None


def _sources(state: State, tablet: Tablet, move: Move) -> set[int] | None:
    """The replicas that are streamed from: the one that leaves, or so many that they meet every quorum."""
    from_all = move.kind is Kind.REBUILD or move.leaving in state.lost
    wanted = tablet.replicas if from_all else (move.leaving,)
    found = {*wanted} & _fenced_at(state, move.epoch)
    return found if len(found) >= consistency.blocking(len(wanted)) else None


def _done(rules: Rules, state: State, effect: Late) -> State | None:
    """The state after a side effect; None where the replica refuses it, or does not answer."""
    volume = effect.volume
    fenced_off = state.fences[volume] > effect.epoch
    if volume in state.dead:
        return None
    if effect.what == "streams":
        if rules.streams_are_fenced and fenced_off:
            return None
        if rules.sessions_refuse and effect.session not in state.sessions[volume]:
            return None
        return state._replace(have=state.have | {volume}) if effect.brings else state
    if rules.fences_refuse and fenced_off:
        return None
    if effect.what == "prepares" and rules.preparing_is_marked and not _unprepared(state, effect):
        return None
    # Whoever drops fences first; sessions are those that the metadata has open at its epoch.
    fenced = _fenced(state, volume) if effect.epoch == state.epoch else _fence_only(state, volume, effect.epoch)
    return fenced._replace(have=fenced.have - {volume}) if effect.of == 0 else fenced


def _unprepared(state: State, effect: Late) -> bool:
    """Whether the replica has no mark yet that it was prepared for this transition."""
    move = state.tablets[effect.of].move
    if move is None or move.started != effect.started:
        return False
    return move.stage is Stage.ALLOW_WRITE_BOTH_READ_OLD and not move.done


def _late(rules: Rules, state: State, effect: Late) -> Iterator[tuple[str, State]]:
    """What a paused coordinator does when it goes on; it sees neither that its time is over nor what became of it."""
    rest = state._replace(late=None, late_left=state.late_left - 1)
    after = _done(rules, rest, effect)
    if after is None:
        yield "the paused one is refused", rest
        return
    move = state.tablets[effect.of].move
    if after.have != rest.have and (move is None or move.started != effect.started):
        yield "!INV-TABL-2: a side effect of a transition that has ended changes rows", after
    yield f"the paused one {effect.what} on {effect.volume}", after


def _of_writer(scenario: Scenario, rules: Rules, state: State) -> Iterator[tuple[str, State]]:
    followed = state.tablets[0]
    writer = state.writer
    if writer is None:
        stage = None if followed.move is None else followed.move.stage
        if not state.acknowledged and scenario.planned_in in (None, stage):
            yield "a write is planned", state._replace(writer=_planned(state, frozenset()))
        return
    have = {volume for volume, _ in writer.acknowledged}
    for volume in writer.due:
        refused = volume in state.dead or (rules.fences_refuse and state.fences[volume] > writer.planned)
        if volume not in have and not refused:
            more = writer._replace(acknowledged=writer.acknowledged | {(volume, writer.since)})
            yield f"it is written to {volume}", state._replace(writer=more, have=state.have | {volume})
    now = _since(state)
    stands = frozenset(
        (volume, then)
        for volume, then in writer.acknowledged
        if not rules.old_acknowledgements_are_forgotten or _stands(volume, then, now)
    )
    volumes = {volume for volume, _ in stands} - state.lost
    if consistency.is_satisfied(ConsistencyLevel.QUORUM, followed.write_sets(), volumes, lambda _: "dc1"):
        yield "it is acknowledged", state._replace(writer=None, acknowledged=True)
    elif state.epoch > writer.planned:
        yield "it is planned anew", state._replace(writer=_planned(state, stands))


def _planned(state: State, acknowledged: frozenset[tuple[int, Since]]) -> Writer:
    due = tuple(dict.fromkeys(volume for side in state.tablets[0].write_sets() for volume in side))
    return Writer(state.epoch, due, _since(state), acknowledged)


def _since(state: State) -> Since:
    followed = state.tablets[0]
    return Since(followed.replicas, state.placed, None if followed.move is None else followed.move.started)


def _stands(volume: int, then: Since, now: Since) -> bool:
    return then.placed == now.placed and (then.started == now.started or volume in then.replicas)


# --- how states change ----------------------------------------------------------------------------------------------


def _with_tablet(state: State, number: int, tablet: Tablet) -> State:
    return state._replace(tablets=(*state.tablets[:number], tablet, *state.tablets[number + 1 :]))


def _committed(state: State, number: int, tablet: Tablet) -> State:
    """The next epoch, in which a tablet is this one."""
    after = _with_tablet(state, number, tablet)._replace(epoch=state.epoch + 1)
    return after if after.tablets[0].reads() == state.tablets[0].reads() else _read_until_now(state, after)


def _read_until_now(before: State, after: State) -> State:
    """The state after an epoch from which on it is read in another way than before."""
    return after._replace(views=(*before.views, View(after.epoch, before.tablets[0].reads(), before.lost)))


def _at_stage(state: State, number: int, tablet: Tablet, move: Move, stage: Stage) -> State:
    return _committed(
        state, number, tablet._replace(move=move._replace(stage=stage, epoch=state.epoch + 1, done=False))
    )


def _ended(state: State, number: int, tablet: Tablet, move: Move) -> State:
    if move.stage not in transitions.OUTCOME_NEW:
        return _committed(state, number, tablet._replace(move=None))
    ended = tablet._replace(move=None, replicas=tablet.old_and_new[1])
    return _committed(state, number, ended)._replace(placed=state.epoch + 1)


def _fenced_at(state: State, epoch: int) -> set[int]:
    gone = state.dead | state.lost
    return {volume for volume, fence in enumerate(state.fences) if fence >= epoch and volume not in gone}


def _fenced(state: State, volume: int) -> State:
    """A volume's table fenced at the newest epoch, with the sessions that the metadata has open there."""
    moves = [tablet.move for tablet in state.tablets if tablet.move is not None and tablet.move.pending == volume]
    opened = frozenset(move.session for move in moves if move.session is not None)
    sessions = (*state.sessions[:volume], opened, *state.sessions[volume + 1 :])
    return _fence_only(state, volume, state.epoch)._replace(sessions=sessions)


def _fence_only(state: State, volume: int, epoch: int) -> State:
    fence = max(epoch, state.fences[volume])
    return state._replace(fences=(*state.fences[:volume], fence, *state.fences[volume + 1 :]))


def _numbered_anew(rules: Rules, state: State) -> State:
    """The same state without what no longer matters, its epochs numbered without gaps.

    A fence only matters by what it lets through: it is put down to the highest epoch that something is compared with.
    Views that have no quorum of replicas left that would answer are gone for good. Of transitions, placements and
    sessions it only matters whether they are the same.
    """
    views = _usable(state)
    writer, late = state.writer, state.late
    if writer is not None and writer.acknowledged and rules.old_acknowledgements_are_forgotten:
        now = _since(state)
        stands = frozenset([(volume, then) for volume, then in writer.acknowledged if _stands(volume, then, now)])
        writer = Writer(writer.planned, writer.due, writer.since, stands)
    moves = [tablet.move for tablet in state.tablets if tablet.move is not None]
    compared = {0, *(move.epoch for move in moves), *(view.end for view in views)}
    if writer is not None:
        compared.add(writer.planned + 1)
    if late is not None:
        compared.add(late.epoch + 1)
    cuts = sorted(compared)
    fences = [
        0 if volume in state.dead else cuts[bisect_right(cuts, fence) - 1] for volume, fence in enumerate(state.fences)
    ]
    used = {0, state.epoch, *fences, *(move.epoch for move in moves), *(view.end for view in views)}
    if writer is not None:
        used.add(writer.planned)
    if late is not None:
        used.add(late.epoch)
    new = {epoch: number for number, epoch in enumerate(sorted(used))}
    known = {move.session: new[move.epoch] for move in moves if move.session is not None}
    if late is not None and late.session is not None:
        known.setdefault(late.session, -2)
    sinces = [] if writer is None else [writer.since, *(then for _, then in writer.acknowledged)]
    # Numbers below zero: they are never those of an epoch to come.
    placed = {epoch: -n for n, epoch in enumerate(sorted({state.placed, *(then.placed for then in sinces)}), 1)}
    begun = {then.started for then in sinces if then.started is not None}
    if late is not None:
        begun.add(late.started)
    started = {epoch: -number for number, epoch in enumerate(sorted(begun), 1)}
    # Made by their constructors: `_replace` costs ten times as much, and this is most of the work.
    return State(
        epoch=new[state.epoch],
        placed=placed[state.placed],
        tablets=tuple([_tablet_anew(tablet, new, started) for tablet in state.tablets]),
        fences=tuple([new[fence] for fence in fences]),
        sessions=tuple(
            [
                frozenset([known.get(epoch, -1) for epoch in sessions])
                if sessions and volume not in state.dead
                else NONE
                for volume, sessions in enumerate(state.sessions)
            ]
        ),
        writer=None if writer is None else _writer_anew(writer, new, placed, started),
        have=state.have,
        acknowledged=state.acknowledged,
        late=None if late is None else _late_anew(late, new, started, known),
        late_left=state.late_left,
        dead=state.dead,
        lost=state.lost,
        views=tuple([View(new[view.end], view.reads, view.lost) for view in views]),
    )


def _usable(state: State) -> list[View]:
    """The views of the past by which a quorum of replicas can still be read."""
    return [view for view in state.views if len(_readable(state, view)) >= consistency.majority(len(view.reads))]


def _readable(state: State, view: View) -> list[int]:
    """Replicas that answer a read that was planned by a view: also lost ones, to who does not know that they are."""
    gone = state.dead | view.lost
    return [volume for volume in view.reads if state.fences[volume] < view.end and volume not in gone]


def _tablet_anew(tablet: Tablet, new: Numbers, started: Numbers) -> Tablet:
    move = tablet.move
    if move is None:
        return tablet
    begun = started.get(move.started, 0)
    anew = Move(move.kind, move.stage, move.leaving, move.pending, begun, new[move.epoch], move.error, move.done)
    return Tablet(tablet.replicas, anew, tablet.begun)


def _writer_anew(writer: Writer, new: Numbers, placed: Numbers, started: Numbers) -> Writer:
    def anew(since: Since) -> Since:
        return Since(since.replicas, placed[since.placed], None if since.started is None else started[since.started])

    acknowledged = frozenset([(volume, anew(since)) for volume, since in writer.acknowledged])
    return Writer(new[writer.planned], writer.due, anew(writer.since), acknowledged)


def _late_anew(late: Late, new: Numbers, started: Numbers, sessions: Numbers) -> Late:
    session = None if late.session is None else sessions[late.session]
    return late._replace(started=started[late.started], epoch=new[late.epoch], session=session)
