"""A metastore, and what is remembered at its root about replicas."""

from __future__ import annotations

from epochlake.jobs.replicas.change_index import ChangeIndexes
from epochlake.jobs.replicas.damage_notes import DamageNotes
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.receipts import Receipts
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.log_place import LogPlace
from epochlake.metastore.metastore import Metastore
from epochlake.metastore.storage.storage import Storage


class Store(Metastore):
    """What gate, coordinator and upkeep work with.

    `ledger`: what compaction has replaced; `damage`: copies that reads found damaged; `receipts`: what each replica has
    acknowledged; `change_indexes`: what readers of change streams read.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        storage: Storage | None = None,
        log: EpochLog | None = None,
        queue: CommitQueue | None = None,
        log_place: LogPlace | None = None,
    ) -> None:
        super().__init__(configuration, storage=storage, log=log, queue=queue, log_place=log_place)
        self.ledger = Ledger(self.storage, self.root.compactions)
        self.damage = DamageNotes(self.storage, self.root.damaged)
        self.receipts = Receipts(self.storage, self.root.receipts)
        self.change_indexes = ChangeIndexes(self.storage, self.root.changes)
