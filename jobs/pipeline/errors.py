"""What a pipeline says when it cannot keep its promise. It never reports a success on a guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epochlake.placement.errors import EpochlakeError


class ConsistencyNotReached(EpochlakeError):
    """The consistency level was not reached for some tablets. What landed stays; retrying the same batch is safe.

    `tablets` are the numbers of those tablets, `epoch` the one that they were last judged at, `replicas` what each
    volume that is missing said.
    """

    exit_code = 75

    def __init__(
        self,
        asked: str,
        level: str,
        epoch: int,
        tablets: Sequence[int],
        replicas: Mapping[str, str],
    ) -> None:
        shown = ", ".join(map(str, tablets[:8])) + (f" and {len(tablets) - 8} more" if len(tablets) > 8 else "")
        said = "; ".join(f"{volume}: {reason}" for volume, reason in replicas.items()) or "placement kept moving"
        super().__init__(
            f"{asked} did not reach {level} at epoch {epoch} for {len(tablets)} tablet(s) ({shown}). "
            f"Replicas that are missing: {said}. Bring them back, or replace their node, and try again"
        )
        self.level = level
        self.epoch = epoch
        self.tablets = tuple(tablets)
        self.replicas = dict(replicas)
