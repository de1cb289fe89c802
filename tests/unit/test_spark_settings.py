"""The settings that a session gets, without starting one."""

from __future__ import annotations

from pathlib import Path

from epochlake.jobs import spark_session

DEFAULTS = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"


def test_spark_submit_gets_the_settings_that_own_sessions_get() -> None:
    lines = [line.split(maxsplit=1) for line in DEFAULTS.read_text(encoding="utf-8").splitlines()]
    given = {words[0]: words[1] for words in lines if words and not words[0].startswith("#")}
    assert given == {
        "spark.jars.packages": spark_session.DELTA_COORDINATES,
        "spark.jars.excludes": ",".join(spark_session.EXCLUDED),
        **spark_session.DELTA_SETTINGS,
        **spark_session.SESSION_SETTINGS,
    }
