"""What a plan of a range movement can be refused for."""

from __future__ import annotations

from epochlake.placement.errors import EpochlakeError
from epochlake.placement.rejections import Code


class PlanRejected(EpochlakeError):
    """The state of the ring does not allow the plan; nothing was changed.

    `code` is stable and meant for programs, `reason` for people. `operation_id` names the operation that stands in
    the way, where one does.
    """

    exit_code = 3

    def __init__(self, code: Code, reason: str, operation_id: str | None = None, *, hint: str = "") -> None:
        super().__init__(reason, hint=hint)
        self.code = code
        self.operation_id = operation_id

    @property
    def statement(self) -> str:
        return f"rejected ({self.code}): {self.reason}"
