"""The example of an ensemble member and the embedded server are one set of values."""

from __future__ import annotations

from pathlib import Path

from epochlake.metastore.coordination.embedded_server import configuration_of

EXAMPLE = Path(__file__).parents[3] / "conf" / "zookeeper.cfg"
OWN_PLACE = {"dataDir", "clientPort"}


def settings_in(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines) if key not in OWN_PLACE}


def test_the_example_has_the_values_that_the_embedded_server_runs_with() -> None:
    embedded = configuration_of(Path("/data"), 2181)
    assert settings_in(EXAMPLE.read_text(encoding="utf-8")) == settings_in(embedded)
