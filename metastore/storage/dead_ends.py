"""Local paths where no directory can ever be made, told from those that only lack their mount now."""

from __future__ import annotations

import os

from epochlake.metastore.storage.disk import Disk


def dead_end(disk: Disk, path: str) -> tuple[str, str] | None:
    """Why making the directory failed for good, and what to do about it; None when it may be made later.

    The first part that is missing says it: a link that leads nowhere, or a parent whose file system takes no new names.
    """
    parent = path
    while not is_directory(disk, parent):
        if disk.status(parent, follow=False) is not None and disk.status(parent) is None:
            target = disk.real_path(parent)
            return (
                f"{parent} is a symbolic link to {target}, which is not there",
                "Mount or make that, or change the link",
            )
        path, parent = parent, os.path.dirname(parent)
        if parent == path:
            return None
    if disk.status(path, follow=False) is not None:
        return None
    return f"the file system of {parent} lets nobody make directories there", "Choose another place"


def is_directory(disk: Disk, path: str) -> bool:
    """Whether a directory is there, and can be looked at."""
    try:
        found = disk.status(path)
    except OSError:
        return False
    return found is not None and found.is_directory
