"""What an agent says to Prometheus, in its text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from epochlake.jobs.agent.documents import AgentState
from epochlake.jobs.agent.messages import Seen
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
    ]
    return "".join(parts)


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    full = f"epochlake_agent_{name}"
    lines = [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{full}{{{inside}}} {float(value):.10g}" if inside else f"{full} {float(value):.10g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
