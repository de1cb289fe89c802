"""What would happen: a description of a cluster in, the same description with the answers filled in out.

Placement cases get the ranges of each keyspace; cases with operations get the placements, node states and locks after
every step, and for a single operation what cancelling it there would lead to. The format is that of the oracles
(`tests/data/oracles/README.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochlake.placement.errors import InvalidRequest
from epochlake.placement.rejections import Code
from epochlake.placement.ring.errors import PlanRejected
from epochlake.placement.ring.operations import plan_join, plan_leave, plan_move, plan_remove, plan_replace
from epochlake.placement.ring.placements import Assignment, calculated, same
from epochlake.placement.ring.rebuild import plan_rebuild
from epochlake.placement.ring.replication import plan_replication_change
from epochlake.placement.ring.state import Operation, OperationKind, RingState, Step, ring_state
from epochlake.placement.ring.steps import accepted, advanced, cancelled, next_step
from epochlake.placement.ring.streaming import streams
from epochlake.placement.ring.tokens import MIN_TOKEN
from epochlake.placement.what_if.document import STATE_NAMES, Asked, Case, Next, read_case

Document = dict[str, Any]
Listed = list[list[Any]]


def simulate(document: Document) -> Document:
    """The document with its answers; `document` itself is not changed.

    Takes one case or several under `cases`. Raises `InvalidRequest`, naming the path, when the document is malformed
    or contradicts itself; operations that the ring's state does not allow are answered as rejected, with the reason.
    """
    if isinstance(document, dict) and "cases" in document:
        cases = document["cases"]
        if not isinstance(cases, list):
            raise InvalidRequest("cases: a list is needed.")
        return {**document, "cases": [_simulated(case, f"cases[{index}]") for index, case in enumerate(cases)]}
    return _simulated(document, "document")


def _simulated(document: Document, path: str) -> Document:
    case = read_case(document, path)
    try:
        state = ring_state(case.nodes, case.keyspaces)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}.nodes: {error.reason}", hint=error.hint) from error
    if "ops" not in document:
        filled = [
            {**keyspace, "ranges": _as_lists(state.placements[case.keyspaces[keyspace["name"]]].reads)}
            for keyspace in document["keyspaces"]
        ]
        return {**document, "keyspaces": filled}
    return {**document, **_Run(case, state, path).answers(document)}


class _Run:
    """A case on its way: the state, the epoch, and what became of each operation."""

    def __init__(self, case: Case, state: RingState, path: str) -> None:
        self.case = case
        self.state = state
        self.epoch = case.epoch
        self.rejected: set[int] = set()
        self.start = state
        self.path = path

    def answers(self, document: Document) -> Document:
        start = {"epoch": self.epoch, "placements": self._placements(self.state)}
        self._check_start(document)
        given = document.get("steps", [{"op": step.op, "step": step.name} for step in self.case.steps])
        steps = [{**item, **self._stepped(step)} for item, step in zip(given, self.case.steps, strict=True)]
        settled = not self.state.operations
        return {
            "start": start,
            "steps": steps,
            "settled": settled,
            "final_equivalent_to_fresh_calculation": self._as_fresh() if settled else None,
        }

    def _stepped(self, step: Next) -> Document:
        asked = self.case.ops[step.op]
        name = str(step.op)
        try:
            if step.step is Step.PREPARE:
                state = accepted(self.state, _plan(self.state, name, asked))
            else:
                self._check_order(step)
                state = cancelled(self.state, name) if step.step is None else advanced(self.state, name)
        except PlanRejected as rejection:
            if step.step is Step.PREPARE:
                self.rejected.add(step.op)
            return {"result": "rejected", "reason": rejection.text}
        self.state = state
        self.epoch += 1
        answer: Document = {"result": "success", "epoch": self.epoch, "node_states": _node_states(state)}
        if step.step is Step.PREPARE:
            answer["locks"] = self._locks(state.operations[name])
            answer.update(self._bytes(state.operations[name]))
        if step.step is Step.FINISH:
            tokens = sorted(state.tokens().items())
            answer["tokens"] = {str(node): list(owned) for node, owned in tokens}
        answer["locks_held"] = len(state.operations)
        answer["placements"] = self._placements(state)
        if name in state.operations and len(self.case.ops) == 1:
            answer["cancel_here"] = self._cancelled(name)
        return answer

    def _check_order(self, step: Next) -> None:
        """A step of an operation in flight is the one that comes next; of a rejected one, any is answered as
        rejected."""
        operation = self.state.operations.get(str(step.op))
        if operation is None and step.op in self.rejected:
            raise PlanRejected(
                Code.UNKNOWN_OPERATION, f"operation {step.op} is not in flight: its PREPARE was rejected."
            )
        if operation is None:
            raise InvalidRequest(f"{step.path}.step: {step.name} of operation {step.op}, which is not in flight.")
        if step.step is not None and next_step(operation) is not step.step:
            raise InvalidRequest(f"{step.path}.step: {step.name}, but {next_step(operation)} comes next.")

    def _cancelled(self, name: str) -> Document:
        back = cancelled(self.state, name)
        placements = self._placements(back)
        answer: Document = {"node_states": _node_states(back), "locks_held": len(back.operations)}
        # A ring that was empty has no placements for others to be equivalent to: they are shown.
        equivalent = bool(self.start.tokens()) and all(
            same(self.start.placements[key].reads, now.reads) and same(self.start.placements[key].writes, now.writes)
            for key, now in back.placements.items()
        )
        answer["equivalent_to_start"] = equivalent
        return answer if equivalent else {**answer, "placements": placements}

    def _placements(self, state: RingState) -> Document:
        owners = _owners(state)
        answer: Document = {}
        for keyspace in self.case.keyspaces:
            placement = state.placements[state.keyspaces[keyspace]]
            reads = self._listed(keyspace, placement.reads, owners)
            writes = "same" if placement.writes is placement.reads else self._listed(keyspace, placement.writes, owners)
            answer[keyspace] = {"reads": reads, "writes": writes}
        return answer

    def _listed(self, keyspace: str, assignment: Assignment, owner: Mapping[int, int]) -> Listed:
        """Ranges with the owner of their end first. Those that have lost their last replica are not listed."""
        start = self.start.placements[self.start.keyspaces[keyspace]].reads
        never_any = bool(self.start.tokens()) and not (start.replicas >= 0).any()
        listed = []
        for low, high, nodes in _as_lists(assignment):
            if nodes or never_any:
                listed.append([low, high, _led_by(owner.get(high), nodes)])
        return listed

    def _locks(self, operation: Operation) -> Document:
        locks: Document = {}
        for keyspace in self.case.keyspaces:
            held = operation.locks.get(self.state.keyspaces[keyspace])
            if held is not None:
                locks[keyspace] = [list(pair) for pair in held.pairs()]
        return locks

    def _bytes(self, operation: Operation) -> Document:
        """Bytes that would be streamed, where the document says how big a keyspace is: its share of the tokens."""
        shares = {replication: streamed.share for replication, streamed in streams(operation).items()}
        moved = {
            name: round(size * shares[self.state.keyspaces[name]])
            for name, size in self.case.sizes.items()
            if self.state.keyspaces[name] in shares
        }
        return {"bytes": moved} if moved else {}

    def _as_fresh(self) -> bool:
        """Whether what is listed equals what the strategies calculate for the tokens as they are now."""
        ring = self.state.ring()
        owners = _owners(self.state)
        for keyspace, replication in self.state.keyspaces.items():
            fresh = {(low, high): set(nodes) for low, high, nodes in _as_lists(calculated(ring, replication))}
            if not self.state.tokens():
                fresh = {}
            listed = self._listed(keyspace, self.state.placements[replication].reads, owners)
            if fresh != {(low, high): set(nodes) for low, high, nodes in listed}:
                return False
        return True

    def _check_start(self, document: Document) -> None:
        """Placements given for the start must be those that the strategies calculate: nothing else is simulated."""
        given = document.get("start", {}).get("placements", {})
        for keyspace, answer in self._placements(self.state).items():
            reads = given.get(keyspace, answer)["reads"]
            if {(low, high): set(nodes) for low, high, nodes in reads} != {
                (low, high): set(nodes) for low, high, nodes in answer["reads"]
            }:
                raise InvalidRequest(
                    f"{self.path}.start.placements.{keyspace}: not what its strategy calculates for these nodes",
                    hint="Leave it out, or correct nodes, tokens or replication",
                )


def _plan(state: RingState, name: str, asked: Asked) -> Operation:
    if asked.kind is OperationKind.JOIN:
        return plan_join(state, name, asked.node, asked.tokens or ())
    if asked.kind is OperationKind.LEAVE:
        return plan_leave(state, name, asked.node, force=asked.force)
    if asked.kind is OperationKind.REMOVE:
        return plan_remove(state, name, asked.node, force=asked.force)
    if asked.kind is OperationKind.MOVE:
        return plan_move(state, name, asked.node, asked.tokens or ())
    if asked.kind is OperationKind.REBUILD:
        return plan_rebuild(state, name, asked.node, asked.datacenter)
    if asked.replication is not None:
        return plan_replication_change(state, name, asked.keyspace, asked.replication)
    return plan_replace(state, name, asked.replaced, asked.node, asked.tokens)


def _owners(state: RingState) -> dict[int, int]:
    """Who owns the end of a range: of the top, the owner of the first token."""
    owners = {token: node for node, tokens in state.tokens().items() for token in tokens}
    if owners:
        owners.setdefault(MIN_TOKEN, owners[min(owners)])
    return owners


def _led_by(owner: int | None, nodes: list[int]) -> list[int]:
    return [owner, *(node for node in nodes if node != owner)] if owner in nodes else nodes


def _node_states(state: RingState) -> Document:
    """States by the document's names; nodes that were replaced are no longer there."""
    nodes = sorted((node.node_id, node) for node in state.nodes.values() if node.replaced_by is None)
    return {str(node_id): STATE_NAMES[node.state] for node_id, node in nodes}


def _as_lists(assignment: Assignment) -> Listed:
    return [[start, end, nodes] for start, end, nodes in assignment.ranges()]
