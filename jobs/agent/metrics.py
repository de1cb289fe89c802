"""What an agent says to Prometheus, in its text format."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from epochlake.jobs.agent.coordination_server import CoordinationServerSeen
from epochlake.jobs.agent.documents import AgentState
from epochlake.jobs.agent.messages import Seen, StreamSeen
from epochlake.jobs.agent.volumes import VolumeHealth

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]


def metrics_text(
    state: AgentState, seen: Iterable[Seen], refused: Mapping[str, int], answered: Mapping[int, int]
) -> str:
    """The page of metrics."""
    counts = Counter(seen)
    volumes = state.volumes
    parts = [
        _family("info", "gauge", "The agent.", [({"name": state.name, "version": state.product_version}, 1)]),
        _family("log_epoch", "gauge", "The last epoch of the copy of the log.", [({}, state.log.epoch)]),
        _family(
            "log_followed_seconds_ago",
            "gauge",
            "Seconds since the log was followed successfully.",
            [({}, state.log.seconds_ago)] if state.log.seconds_ago is not None else [],
        ),
        _family("peers", "gauge", "Other agents as seen here.", [({"seen": one}, counts[one]) for one in Seen]),
        _family("problems", "gauge", "What people should look at.", [({}, len(state.problems))]),
        _family(
            "volume_ok",
            "gauge",
            "Whether a volume can be used.",
            [({"volume": v.name}, v.health is VolumeHealth.OK) for v in volumes],
        ),
        _family(
            "volume_free_bytes",
            "gauge",
            "Free space of a volume.",
            [({"volume": v.name}, v.free) for v in volumes if v.free is not None],
        ),
        _family(
            "volume_probe_seconds",
            "gauge",
            "What the last look at a volume took, or has taken so far.",
            [({"volume": v.name}, v.seconds) for v in volumes if v.seconds is not None],
        ),
        _family(
            "refused_total", "counter", "Requests refused.", [({"code": k}, n) for k, n in sorted(refused.items())]
        ),
        _family(
            "answered_total",
            "counter",
            "Requests answered, by status.",
            [({"status": str(k)}, n) for k, n in sorted(answered.items())],
        ),
        _family(
            "tasks_total",
            "counter",
            "Tasks near its disks.",
            [({"outcome": "done"}, state.tasks.done), ({"outcome": "undone"}, state.tasks.undone)],
        ),
        _family(
            "streamed_bytes_total",
            "counter",
            "Bytes of data files that came from other agents, and went to them.",
            [({"direction": "received"}, state.tasks.received), ({"direction": "served"}, state.tasks.served)],
        ),
        *_coordination_server(state.coordination),
        *_change_streams(state.streams, time.time()),
    ]
    return "".join(parts)


def _coordination_server(server: CoordinationServerSeen | None) -> list[str]:
    """The ZooKeeper server of the agent; nothing where it runs none."""
    if server is None:
        return []
    return [
        _family(
            "coordination_server_serving", "gauge", "Whether its ZooKeeper server serves.", [({}, server.state.serves)]
        ),
        _family(
            "coordination_server_votes",
            "gauge",
            "Whether its ZooKeeper server is a voter of the ensemble.",
            [({}, server.role == "voter")],
        ),
        _family(
            "coordination_server_starts_total",
            "counter",
            "How often its ZooKeeper server was started.",
            [({}, server.starts)],
        ),
    ]


def _change_streams(streams: Iterable[StreamSeen], now: float) -> list[str]:
    """What change streams keep, and how far their readers are behind; nothing where there is no stream."""
    found = [({"table": one.table}, one) for one in streams]
    readers = [({**labels, "reader": one.name}, one) for labels, stream in found for one in stream.readers]
    if not found:
        return []
    return [
        _family(
            "changes_kept_bytes", "gauge", "Bytes that a change stream keeps.", [(at, one.bytes) for at, one in found]
        ),
        _family(
            "changes_kept_writes",
            "gauge",
            "Writes that a change stream keeps.",
            [(at, one.writes) for at, one in found],
        ),
        _family(
            "changes_oldest_seconds",
            "gauge",
            "Seconds since the oldest write that a change stream keeps was acknowledged.",
            [(at, max(0.0, now - one.oldest_at)) for at, one in found if one.oldest_at is not None],
        ),
        _family(
            "changes_open_writes",
            "gauge",
            "Writes that may land and are in no change stream yet.",
            [(at, one.open) for at, one in found],
        ),
        _family(
            "changes_reader_behind_writes",
            "gauge",
            "Writes that a named reader has not read.",
            [(at, one.behind) for at, one in readers],
        ),
        _family(
            "changes_reader_lag_seconds",
            "gauge",
            "Seconds since the oldest write that a named reader has not read was acknowledged.",
            [(at, 0.0 if one.unread_since is None else max(0.0, now - one.unread_since)) for at, one in readers],
        ),
        _family(
            "changes_reader_gone",
            "gauge",
            "Whether a named reader has to begin again, as what it needs is not kept any more.",
            [(at, one.gone) for at, one in readers],
        ),
    ]


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    full = f"epochlake_agent_{name}"
    lines = [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{full}{{{inside}}} {float(value):.10g}" if inside else f"{full} {float(value):.10g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
