"""Init: a user names the nodes that are to keep the metadata, to any agent; the cluster begins on all or on none.

Seed 004, "Initial cluster setup". The agent that is asked prepares every named node: it answers, is blank, has the same
root, finds no cluster there, and can write to its home. If one fails, the others are told to forget it, nothing has
begun, and the error has every node that failed and why. Then the log begins, under a request id that is made of what
was asked: without an answer the same call, to the same agent or to another one, begins nothing twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec
from epochlake.jobs.agent.home import Home, HomeUnwritable
from epochlake.jobs.agent.messages import Introduction, Refusal, Tag, refusal

logger = logging.getLogger(__name__)

INIT = "init"
FORGOTTEN_AFTER = 600.0
"""Seconds after which a node that was prepared may be prepared for another call: whoever prepared it has died."""


class InitOutcome(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"


class InitOrder(msgspec.Struct, frozen=True):
    """What a user asks for. `nodes` are names."""

    nodes: tuple[str, ...]
    name: str | None = None

    @property
    def request_id(self) -> str:
        """The same for the same order, whoever is asked."""
        words = "\n".join([self.name or "", *sorted(set(self.nodes))])
        return f"init-{hashlib.sha256(words.encode()).hexdigest()[:32]}"


class InitAnswer(msgspec.Struct, frozen=True):
    """`running`: the cluster has begun, `tag` is its tag. `failed`: it has not, or it may have: `reason` says which."""

    outcome: InitOutcome
    tag: Tag | None = None
    reason: str = ""


class Prepare(msgspec.Struct, frozen=True):
    """An agent asks another one to be ready, or with `forget` to be so no more."""

    sender: Introduction
    nonce: str
    request_id: str
    root: str
    forget: bool = False


class Ready(msgspec.Struct, frozen=True):
    nonce: str


class Prepared(msgspec.Struct, frozen=True):
    """What a node was prepared for, in its home; `since` is the time of day."""

    request_id: str = ""
    since: float = 0.0


class Idle(msgspec.Struct, frozen=True):
    """What an agent knows of clusters: the one that it belongs to or knows of, and what it found at its root."""

    tag: Tag | None
    root: str | None
    looked: str


class Began(msgspec.Struct, frozen=True):
    """What came of beginning the log: the tag, or why not. Not `known`: it may have begun all the same."""

    tag: Tag | None = None
    reason: str = ""
    known: bool = True


Asking = Callable[[str, Prepare], Awaitable[Refusal | Ready]]
"""Send a message to the agent of a node, by the node's name; a Refusal also where it cannot be reached."""
Founding = Callable[[InitOrder], Awaitable[Began]]
"""Begin the log under the request id of an order."""


class Initialising:
    """Init as one agent takes part in it, asked by a user or by another agent."""

    def __init__(
        self,
        home: Home,
        *,
        introduction: Callable[[], Introduction],
        idle: Callable[[], Idle],
        ask: Asking,
        found: Founding,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._home = home
        self._introduction = introduction
        self._idle = idle
        self._ask = ask
        self._found = found
        self._clock = clock
        self._answers: dict[str, InitAnswer] = {}
        self._task: asyncio.Task[None] | None = None
        self._preparing = asyncio.Lock()

    def ordered(self, order: InitOrder) -> InitAnswer:
        """What came of a user's call, or that it is under way; begun where it is not known. One at a time."""
        known = self._answers.get(order.request_id)
        if known is not None:
            if known.outcome is InitOutcome.FAILED:
                del self._answers[order.request_id]  # told once: the next call is another try
            return known
        if self._task is not None:
            return InitAnswer(InitOutcome.PENDING, reason="an init is under way")
        self._task = asyncio.ensure_future(self._run(order))
        return InitAnswer(InitOutcome.PENDING)

    async def prepare(self, asked: Prepare) -> Refusal | Ready:
        """Be ready, or say why this node cannot be. Asked again it is ready again. Two that ask at once are answered
        one after the other: while one is written down, the other one would find nothing.
        """
        async with self._preparing:
            return await self._prepare(asked)

    async def _prepare(self, asked: Prepare) -> Refusal | Ready:
        mine, idle = self._introduction(), self._idle()
        why = refusal(mine, asked.sender)
        if why is not None:
            return why
        prepared = self._home.read(INIT, Prepared) or Prepared()
        if asked.forget:
            if prepared.request_id == asked.request_id:
                await asyncio.to_thread(self._home.write, INIT, Prepared())
            return Ready(asked.nonce)
        if prepared.request_id == asked.request_id and idle.root == asked.root:
            return Ready(asked.nonce)  # The same call again: whether it has begun a cluster the log knows.
        if idle.tag is not None:
            return Refusal("initialised", f"it belongs to cluster {idle.tag}, or knows of it")
        if idle.root != asked.root:
            return Refusal("root", f"its root is {idle.root or 'not given'}, not {asked.root}")
        if idle.looked != "no-cluster":
            return Refusal("root", f"it has not found its root empty yet ({idle.looked})")
        other = prepared.request_id not in ("", asked.request_id)
        if other and self._clock() - prepared.since < FORGOTTEN_AFTER:
            return Refusal("init-open", "another init is under way")
        try:
            await asyncio.to_thread(self._home.write, INIT, Prepared(asked.request_id, self._clock()))
        except HomeUnwritable as error:
            return Refusal("home", error.reason)
        return Ready(asked.nonce)

    async def _run(self, order: InitOrder) -> None:
        try:
            answer = await self._begin(order)
        except Exception as error:
            logger.exception("init failed")
            answer = InitAnswer(InitOutcome.FAILED, reason=f"the agent failed: {error!r}")
        finally:
            self._task = None
        logger.info("init: %s %s", answer.outcome, answer.reason)
        self._answers = {**dict(list(self._answers.items())[-20:]), order.request_id: answer}

    async def _begin(self, order: InitOrder) -> InitAnswer:
        idle = self._idle()
        if idle.root is None:
            return InitAnswer(InitOutcome.FAILED, reason="the agent that was asked was given no root")
        if idle.tag is not None:
            # The same call before this one may have begun it: the log knows.
            began = await self._found(order)
            if began.tag is not None:
                return InitAnswer(InitOutcome.RUNNING, began.tag)
            return InitAnswer(InitOutcome.FAILED, reason=f"cluster {idle.tag} is running already: {began.reason}")
        names = tuple(dict.fromkeys(order.nodes))
        failed = await self._tell_all(order, names, idle.root)
        if not failed:
            began = await self._found(order)
            if began.tag is not None:
                return InitAnswer(InitOutcome.RUNNING, began.tag)
            if not began.known:
                # The nodes stay prepared, so that nobody begins another one before it is known.
                hint = "make the same call again, to any agent"
                return InitAnswer(InitOutcome.FAILED, reason=f"it may have begun: {began.reason}; {hint}")
            failed = {"the log": began.reason}
        await self._tell_all(order, names, idle.root, forget=True)
        said = "; ".join(f"{name}: {why}" for name, why in failed.items())
        return InitAnswer(InitOutcome.FAILED, reason=f"nothing has begun. {said}")

    async def _tell_all(
        self, order: InitOrder, names: tuple[str, ...], root: str, *, forget: bool = False
    ) -> dict[str, str]:
        """Prepare every node, or have it forget; the nodes that failed, and why."""
        asked = [Prepare(self._introduction(), secrets.token_hex(8), order.request_id, root, forget) for _ in names]
        answers = await asyncio.gather(*(self._tell(name, one) for name, one in zip(names, asked, strict=True)))
        failed = {}
        for name, sent, answer in zip(names, asked, answers, strict=True):
            if isinstance(answer, Refusal):
                failed[name] = answer.reason
            elif answer.nonce != sent.nonce:
                failed[name] = "it repeats an answer to another call"
        return failed

    async def _tell(self, name: str, asked: Prepare) -> Refusal | Ready:
        if name == self._introduction().name:
            return await self.prepare(asked)
        return await self._ask(name, asked)
