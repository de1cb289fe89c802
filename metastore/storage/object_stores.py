"""Places that are on no file system of this machine: one handle of Arrow for each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from pyarrow import fs

_S3_OPTIONS = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "aws_region": "region",
    "aws_endpoint_url": "endpoint_override",
}

MOST_KEPT = 256


class ObjectStores:
    """The object stores that are reached with `options`, which have delta-rs's names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._kept = lru_cache(maxsize=MOST_KEPT)(partial(_connected, dict(options)))

    def at(self, scheme: str, authority: str) -> fs.FileSystem:
        """The store behind the beginning of a URI. Raises what Arrow raises."""
        return self._kept(scheme, authority)


def _connected(options: Mapping[str, str], scheme: str, authority: str) -> fs.FileSystem:
    if scheme in ("s3", "s3a"):
        known = {theirs: options[ours] for ours, theirs in _S3_OPTIONS.items() if ours in options}
        return fs.S3FileSystem(**known)
    return fs.FileSystem.from_uri(f"{scheme}://{authority}")[0]
