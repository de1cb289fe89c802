"""A metastore, and what is remembered at its root about replicas."""

from __future__ import annotations

from epochlake.jobs.replicas.damage_notes import DamageNotes
from epochlake.jobs.replicas.ledger import Ledger
from epochlake.jobs.replicas.receipts import Receipts
from epochlake.metastore.committing.queue import CommitQueue
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.metastore import Metastore


class Store(Metastore):
    """What gate, coordinator and upkeep work with.

    `ledger`: what compaction has replaced; `damage`: copies that reads found damaged; `receipts`: what each replica has
    acknowledged.
    """

    def __init__(
        self, configuration: Configuration, *, log: EpochLog | None = None, queue: CommitQueue | None = None
    ) -> None:
        super().__init__(configuration, log=log, queue=queue)
        self.ledger = Ledger(self.root.compactions)
        self.damage = DamageNotes(self.root.damaged)
        self.receipts = Receipts(self.root.receipts)
