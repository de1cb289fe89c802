"""Places by their URIs: a plain path, `file://…`, or an address that `pyarrow.fs` knows. Nothing here does I/O."""

from __future__ import annotations

import os
import re
import uuid
from urllib.parse import unquote, urlsplit

from epochlake.metastore.storage.failures import StorageMisconfigured
from epochlake.metastore.texts import is_unicode

TEMPORARY = ".tmp-"
"""Part of the name of a file that is being written and will be renamed; left behind only by a killed process."""

_TO_NORMALISE = re.compile(r"/(?:/|\.{1,2}(?:/|\Z)|\Z)")
"""What is in an absolute path that `os.path.normpath` would change, and in the path `/`."""

_READ_OTHERWISE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")


def local_path(uri: str) -> str | None:
    """The absolute path of a local URI, None for any other."""
    if "://" not in uri:
        return absolute(uri)
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else None


def absolute(path: str) -> str:
    """`os.path.abspath`, which each access to storage asks for more than once, mostly for a path that it would not
    change.
    """
    if path.startswith("/") and _TO_NORMALISE.search(path) is None:
        return path
    return os.path.abspath(path)


def require_local(uri: str) -> str:
    """`local_path` of what only file systems can do."""
    path = local_path(uri)
    assert path is not None, f"{uri} is on no file system"
    return path


def join(uri: str, *names: str) -> str:
    return "/".join([uri.rstrip("/"), *names])


def delta_uri(uri: str) -> str:
    """The place as delta-rs wants it: a local one as a path, so that its characters need no escaping.

    Raises StorageMisconfigured where delta-rs would look in another directory all the same.
    """
    require_fit_for_tables(uri)
    return local_path(uri) or uri


def require_fit_for_tables(uri: str) -> None:
    """Raise StorageMisconfigured for a local path that names another directory when it is read as a URI, and for what
    is no text in UTF-8: bytes of a name that are none come as half characters, which no log can keep.
    """
    if not is_unicode(uri):
        raise StorageMisconfigured(
            f"no table can be at {uri!a}, which is no text in UTF-8",
            hint="Choose a directory whose name, and whose parents' names, are UTF-8",
        )
    path = local_path(uri)
    if path is not None and "://" in uri and (host := urlsplit(uri).netloc):
        raise StorageMisconfigured(
            f"{uri} names a machine, {host!r}, and files are read here",
            hint=f"Write file:///{host}{path} for an absolute path, or leave file:// out for a relative one",
        )
    if path is not None and _READ_OTHERWISE.search(path):
        raise StorageMisconfigured(
            f"no table can be at {path!r}",
            hint="Choose a directory without `%` before two hexadecimal digits, without backslashes and without "
            "control characters in its path",
        )


def spark_uri(uri: str) -> str:
    """The place as Spark's Hadoop file systems want it, whatever their default is."""
    path = local_path(uri)
    if path is not None:
        return f"file://{path}"
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


def temporary_beside(path: str) -> str:
    """A new name in the directory of a local path, for a file that will be renamed to it or linked as it."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}{TEMPORARY}{uuid.uuid4().hex}")
