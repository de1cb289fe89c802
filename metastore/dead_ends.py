"""Local paths where no directory can ever be made, told from those that only lack their mount now."""

from __future__ import annotations

import os


def dead_end(path: str) -> str | None:
    """Why making the directory failed for good, and what to do; None when it may be made later.

    The first part that is missing says it: a link that leads nowhere, or a parent whose file system takes no new names.
    """
    parent = path
    while not os.path.isdir(parent):
        if os.path.islink(parent):
            target = os.path.realpath(parent)
            return (
                f"{parent} is a symbolic link to {target}, which is not there: mount or make that, or change the link"
            )
        path, parent = parent, os.path.dirname(parent)
        if parent == path:
            return None
    if os.path.lexists(path):
        return None
    return f"the file system of {parent} lets nobody make directories there: choose another place"
