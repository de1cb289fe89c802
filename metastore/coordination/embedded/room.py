"""Whether the disk of a root has room for the embedded ZooKeeper: it cannot say so itself when it has none."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

NEEDED_BYTES = 1 << 20


def full_disk(directory: Path) -> str | None:
    """That the disk, or the quota, has no room for what the server writes when it starts; None when that is not so."""
    probe = directory / f".room-{uuid.uuid4().hex}"
    try:
        with open(probe, "xb", buffering=0) as file:
            left = NEEDED_BYTES
            while left:
                left -= file.write(bytes(left))
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the disk of {directory} is full ({error.strerror})"
    finally:
        with suppress(OSError):
            probe.unlink()
    return None
