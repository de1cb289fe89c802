"""Storage in memory, with the contract of storage on a disk: many of them run in one process and know nothing of each
other, unless they are given one disk.
"""

from __future__ import annotations

from typing import NoReturn

from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.memory_disk import MemoryDisk
from epochlake.metastore.storage.storage import Storage


class MemoryStorage(Storage):
    """Storage whose local paths lie in memory. `disk` is shared by those who are to see the same files, as processes of
    one machine do; what each keeps for itself, deadlines and promises are its own.
    """

    disk: MemoryDisk

    def __init__(self, settings: StorageSettings | None = None, *, disk: MemoryDisk | None = None) -> None:
        super().__init__(settings or StorageSettings(), disk=disk or MemoryDisk())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryStorage) and other.disk is self.disk and other.settings == self.settings

    def __hash__(self) -> int:
        return hash((id(self.disk), super().__hash__()))

    def __reduce__(self) -> NoReturn:
        raise TypeError("storage in memory cannot leave its process")
