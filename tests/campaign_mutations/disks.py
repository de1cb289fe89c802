"""Mutations of storage: put-if-absent, syncs, digests, deadlines, what is kept of tables that others exchange."""

from __future__ import annotations

from tests.campaign_mutations.mutation import BOTH, ROWS, Mutation

STORAGE = "metastore/storage/storage.py"
SEALING = "jobs/replicas/sealing.py"

MUTATIONS = (
    Mutation(
        "put-if-absent puts over what is there",
        "a small file is put by a link: of two one gets it",
        STORAGE,
        "                self._write_through(temporary, data)\n                try:\n"
        "                    self.disk.link(temporary, path)\n",
        "                self._write_through(temporary, data)\n                try:\n"
        "                    self.disk.rename(temporary, path)\n",
        BOTH,
    ),
    Mutation(
        "small files get their names before their bytes are on the disk",
        "020: what is put or replaced is on the disk when the call returns, and never torn",
        STORAGE,
        "        self.disk.write(path, data, new=True)\n        self.syncing.sync([path])\n",
        "        self.disk.write(path, data, new=True)\n",
        BOTH,
    ),
    Mutation(
        "only names are synced",
        "020: nothing is acknowledged that the disk does not have",
        "metastore/storage/syncing.py",
        "        self._disk.sync(list(dict.fromkeys(files)), list(dict.fromkeys(directories)))\n",
        "        self._disk.sync([], list(dict.fromkeys(directories)))\n",
        BOTH,
    ),
    Mutation(
        "only bytes are synced",
        "020: the directory is synced that names a file",
        "metastore/storage/syncing.py",
        "        self._disk.sync(list(dict.fromkeys(files)), list(dict.fromkeys(directories)))\n",
        "        self._disk.sync(list(dict.fromkeys(files)), [])\n",
        BOTH,
    ),
    Mutation(
        "copies are not synced",
        "020: a copied file is on the disk before it gets its name",
        STORAGE,
        "                    self.syncing.sync_replicated([temporary])\n                    self.disk.rename(",
        "                    self.disk.rename(",
        ROWS,
    ),
    Mutation(
        "pieces are not synced",
        "020: a piece that is cut is on the disk before it gets its name",
        STORAGE,
        'self.deadlines.within(uri, f"sync {uri}", lambda: self.syncing.sync_replicated([temporary]))\n',
        "pass\n",
        ROWS,
    ),
    Mutation(
        "bytes are not compared with their digest",
        "022: a data file proves its own bytes",
        SEALING,
        "                if hexdigest(_chunks(stream, size, uri)) != digest:\n",
        "                if not hexdigest(_chunks(stream, size, uri)):\n",
        ROWS,
    ),
    Mutation(
        "a footer is not compared with its digest",
        "022: the footer is the one that was written, or the file is not read",
        SEALING,
        "    if value_in(footer, FOOTER) != digest_of(with_value(footer, FOOTER, BLANK)):\n",
        "    if False:\n",
        ROWS,
    ),
    Mutation(
        "storage that hangs is waited for",
        "024: every access to a volume has a deadline",
        "metastore/storage/deadlines.py",
        "        return self.seconds\n",
        '        return float("inf")\n',
        ROWS,
    ),
    Mutation(
        "a table that was exchanged is taken for the one that is kept",
        "032: what is kept counts while the commit that it ends with is the same file",
        "jobs/replicas/states.py",
        "    return delta_commits.identity(storage, uri, kept.state.version) == kept.identity\n",
        "    return True\n",
        ROWS,
    ),
    Mutation(
        "a replica table is read over a hole",
        "032: a hole in a replica table's log is neither read over nor filled",
        "metastore/delta_commits.py",
        "    if is_missing(storage, newest.table, newest.version + 1):\n",
        "    if False:\n",
        ROWS,
    ),
)
