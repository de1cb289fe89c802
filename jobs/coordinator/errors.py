"""What side effects of the coordinator raise."""

from __future__ import annotations

from epochlake.placement.errors import EpochlakeError


class SideEffectFailed(EpochlakeError):
    """A side effect was not done; the step stays where it is, and it is tried again or rolled back."""

    exit_code = 75
