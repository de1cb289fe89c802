"""What an agent's log says of refusals, however many there are."""

from __future__ import annotations

import asyncio
import logging

import pytest
from epochlake.jobs.agent import refusals
from epochlake.jobs.agent.refusals import MOST, RefusalLog

FLOOD = 10_000
REASON = "its TLS handshake failed: http request"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == refusals.logger.name]


def test_a_flood_of_one_peer_is_one_line_and_how_many_followed(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        told = RefusalLog()
        for _ in range(FLOOD):
            told.note("10.0.0.9", "tls", REASON)
        told.note("10.0.0.9", "token", "the request bears no token of this cluster")
        assert lines(caplog) == [
            f"refused 10.0.0.9 (tls): {REASON}",
            "refused 10.0.0.9 (token): the request bears no token of this cluster",
        ]
        told.end()

    asyncio.run(scene())
    assert lines(caplog)[2:] == [f"refused 10.0.0.9 (tls) 9,999 more within 60 s: {REASON}"]


def test_what_goes_on_is_told_again_when_the_time_is_over_and_what_has_ended_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        told = RefusalLog(0.01)
        for _ in range(FLOOD):
            told.note("10.0.0.9", "tls", REASON)  # nothing else runs meanwhile
        assert len(lines(caplog)) == 1
        while told._more:
            await asyncio.sleep(0.01)
        assert len(lines(caplog)) == 2
        told.note("10.0.0.9", "tls", REASON)
        told.end()

    asyncio.run(asyncio.wait_for(scene(), 120))
    assert lines(caplog) == [
        f"refused 10.0.0.9 (tls): {REASON}",
        f"refused 10.0.0.9 (tls) 9,999 more within 0.01 s: {REASON}",
        f"refused 10.0.0.9 (tls): {REASON}",
    ]


def test_of_ever_new_peers_so_many_are_told_apart_and_the_others_are_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def scene() -> None:
        told = RefusalLog()
        for number in range(FLOOD):
            told.note(f"fd00::{number:x}", "tls", "x" * 100_000)
        assert len(told._more) == len(told._timers) == MOST + 1
        told.end()
        assert not told._more

    asyncio.run(scene())
    said = lines(caplog)
    assert len(said) == MOST + 2
    assert "refused others (several)" in said[MOST]
    assert f"{FLOOD - MOST - 1:,} more within 60 s" in said[-1]
    assert max(map(len, said)) < 400
