"""A read plan names each copy of a file as the replica has it that serves it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from epochlake.jobs.replicas.files import DataFile, cut_id, path_of
from epochlake.jobs.replicas.reading import plan_read
from epochlake.jobs.replicas.replica import ReplicaAddress
from epochlake.jobs.replicas.states import FileTable
from epochlake.placement.tokens import range_label

from tests.support.replicas import TABLE, make_replica

LAST = 99


class Held:
    """What a replica has: one file."""

    def __init__(self, address: ReplicaAddress, file: DataFile) -> None:
        self.address = address
        self.all_files = {file.file_id: file}
        self._table = FileTable.of([file])

    def within(self, low: int, high: int) -> list[DataFile]:
        return self._table.within(low, high)

    def showing(self, low: int, high: int) -> list[DataFile]:
        return self._table.showing(low, high)


def test_a_piece_that_each_replica_has_cut_for_itself_is_read_with_the_size_that_it_has_there(tmp_path: Path) -> None:
    name = cut_id("a", 0, LAST)
    label = range_label(0, LAST)
    file = DataFile(name, label, path_of(label, name), 1_000, 10, 0, LAST, 1, 1, False)
    sizes = {1: 1_000, 2: 1_234, 3: 999}
    held = [
        Held(make_replica(tmp_path, volume), msgspec.structs.replace(file, size=size)) for volume, size in sizes.items()
    ]
    served = set()
    for turn in range(3):
        [copy] = plan_read(TABLE, [(0, LAST, held)], turn=turn).copies
        assert copy.file.size == sizes[copy.address.volume_id]
        served.add(copy.address.volume_id)
    assert served == set(sizes)
