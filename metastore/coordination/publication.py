"""What is published of an ensemble, and what the ensemble keeps that proves it (published.py)."""

from __future__ import annotations

import msgspec

FORMAT = 1


class PublishedEnsemble(msgspec.Struct, frozen=True):
    """The ensemble of a cluster at one moment. `ensemble`: its own id; `connect`: where its clients reach it, with a
    chroot where there is one; `version`: of its configuration, as ZooKeeper writes it.
    """

    number: int
    cluster_id: str
    ensemble: str
    seal: str
    connect: str
    version: str
    format: int = FORMAT


class EnsembleIdentity(msgspec.Struct, frozen=True):
    """What an ensemble keeps of itself; the newest seal is the last one."""

    ensemble: str
    seals: tuple[str, ...] = ()

    def refusal(self, published: PublishedEnsemble) -> str:
        """Why this is not what was published, else empty."""
        if published.seal in self.seals:
            return ""
        if self.ensemble == published.ensemble:
            return "it went back to a state of before what the cluster has published last"
        return "it is another ensemble than the one that the cluster has published"


class Heard(msgspec.Struct, frozen=True):
    """What somebody else knows: what was published, as far as they have seen it, and where servers are (host:port)."""

    published: PublishedEnsemble | None = None
    servers: tuple[str, ...] = ()
