"""Mutations of checks, and of rollbacks."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, Mutation, also

MUTATIONS = (
    also(
        "rows are not judged by checks where they are encoded",
        "081: a check is judged where rows are encoded, whoever writes them",
        ROWS,
    ),
    also(
        "what was staged before a check lands",
        "081: what was staged before is read again when its writer learns of the check",
        ROWS,
    ),
    Mutation(
        "a rollback leaves what has come since",
        "074: rows that came after the time of a rollback are deleted by it",
        "jobs/administration/past_rows.py",
        "        new = [one.after.filter(pa.array(_are(one, ADDED), pa.bool_())) for one in found]\n",
        "        new = [one.after.slice(0, 0) for one in found]\n",
        ROWS,
    ),
)
