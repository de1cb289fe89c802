"""Mutations of reads as of an earlier time."""

from __future__ import annotations

from tests.campaign_mutations.mutation import ROWS, ROWS_TABLES, also

_SAYS_ALL = "074: a merged file says all about times that are not before its newest row, nor before it was made"

MUTATIONS = (
    also("a read as of a time takes merged files as they are", _SAYS_ALL, ROWS_TABLES),
    also("a read as of a time forgets when a merged file was made", _SAYS_ALL, ROWS_TABLES),
    also("a read as of a time does without what is gone", "074: what is missing is known; it is refused", ROWS_TABLES),
    also("a read as of a time shows what came later", "074: writes whose time is at most T", ROWS_TABLES),
    also("a read as of a time judges by the clock", "114: a read as of T judges by T, with what had begun by T", ROWS),
    also("a read as of a time takes nothing back", "074: merged files that say too little are expanded", ROWS_TABLES),
)
