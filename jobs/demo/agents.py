"""The demo's agents, one for each node: they let nodes join, and files go from one to the other."""

from __future__ import annotations

from collections.abc import Callable

from epochlake import EpochlakeError, InvalidRequest
from epochlake.jobs.agent.asking import state_of
from epochlake.jobs.agent.documents import AgentState
from epochlake.jobs.agent.http_client import HttpClient
from epochlake.jobs.demo.children import Child, Ended
from epochlake.jobs.demo.directory import DemoDirectory

AGENT = "epochlake.jobs.agent"
LISTENS = "listens on "
START_SECONDS = 60.0
PERIOD = "0.5"

Start = Callable[[str, list[str]], Child]
"""Starts a process of the demo by its name and its words."""


class DemoAgents:
    """The agents that were started so far, by their nodes."""

    def __init__(self, place: DemoDirectory, start: Start) -> None:
        self._place = place
        self._start = start
        self._children: dict[str, Child] = {}
        self._addresses: dict[str, str] = {}

    def begin(self, node: str, *words: str) -> str:
        """Start the agent of a node; where it answers. The first one is the seed of the others, and lets nodes join."""
        seed = next(iter(self._addresses.values()), None)
        given = ["--home", str(self._place.home_of(node)), "--name", node, "--listen", "127.0.0.1:0"]
        given += ["--root", str(self._place.cluster), "--conf", str(self._place.configuration_file), "--period", PERIOD]
        given += ["--admit"] if seed is None else ["--seed", seed]
        child = self._children[node] = self._start(f"agent-{node}", [AGENT, *given, *words])
        said = child.receive(START_SECONDS).decode(errors="replace")
        self._addresses[node] = said.strip().partition(LISTENS)[2]
        return self._addresses[node]

    def states(self) -> dict[str, AgentState]:
        """What each says of itself. Raises EpochlakeError for one that does not answer."""
        return {node: state_of(address, HttpClient()) for node, address in self._addresses.items()}

    def require_running(self) -> None:
        """Raises ChildFailed for one that has ended."""
        for child in self._children.values():
            child.require_running()

    def finish(self, finish: Callable[[Child], Ended]) -> list[Ended]:
        """End all of them; how they ended."""
        return [finish(child) for child in self._children.values()]


def require_installed() -> None:
    """Raises InvalidRequest where what agents need is not installed."""
    try:
        import h11  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidRequest(
            "agents need h11, which is not installed here", hint="Run `pip install 'epochlake[agent]'`"
        ) from None


def states_or_error(agents: DemoAgents) -> dict[str, AgentState] | str:
    """What agents say of themselves, or why that is not known."""
    try:
        return agents.states()
    except EpochlakeError as error:
        return str(error)
