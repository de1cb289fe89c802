"""How long something of a table may be kept: looked at when it is asked for.

The log takes longer ones, as earlier versions have committed them: what is in it stays readable, and is verified.
"""

from __future__ import annotations

import reprlib

from epochlake.metastore.committing.arguments import fits
from epochlake.metastore.metadata.events.table_lifetimes import LONGEST_SECONDS
from epochlake.placement.errors import InvalidRequest


def require_kept_for(what: str, seconds: object) -> None:
    """Raise InvalidRequest where `what` cannot be kept for so many seconds."""
    if not fits(seconds, float) or not 0 <= seconds <= LONGEST_SECONDS:  # type: ignore[operator]
        raise InvalidRequest(
            f"{what} cannot be kept for {reprlib.repr(seconds)} seconds",
            hint="Give seconds, from 0 to those of a thousand years",
        )
