"""From the fields of a connection to the environment that a process with this cluster has, and to its configuration.

The environment is the one form for both: a submitted job gets it as its own, a task of this process loads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochlake.placement.errors import InvalidRequest

if TYPE_CHECKING:
    from epochlake.metastore.configuration import Configuration

FIELDS = ("conf", "root", "zookeeper", "settings")
"""What the extra of a connection may hold. `root` goes before the host."""

CONF = "EPOCHLAKE_CONF"
PREFIX = "EPOCHLAKE__"


def variables_of(host: str | None, extra: Mapping[str, Any]) -> dict[str, str]:
    """The variables that say what a connection says. Raises InvalidRequest for a field that is not known."""
    extra = {name.removeprefix("extra__epochlake__"): value for name, value in extra.items()}
    unknown = sorted(extra.keys() - {*FIELDS})
    if unknown:
        raise InvalidRequest(
            f"the connection has the extra field {unknown[0]!r}, which is none",
            hint=f"Give some of {', '.join(FIELDS)}; what a configuration file may hold belongs into settings",
        )
    found = {}
    if extra.get("conf"):
        found[CONF] = str(extra["conf"])
    if root := extra.get("root") or host:
        found[f"{PREFIX}ROOT"] = str(root)
    if extra.get("zookeeper"):
        found[f"{PREFIX}ZOOKEEPER__CONNECT"] = str(extra["zookeeper"])
    return found | _of_settings(extra.get("settings") or {})


def configuration_of(variables: Mapping[str, str]) -> Configuration:
    """The configuration of a process with these variables beside its own. Raises ConfigurationError."""
    from epochlake.metastore import configuration  # only here: parsing a DAG reads none

    return configuration.load(environ={**os.environ, **variables})


def _of_settings(settings: object) -> dict[str, str]:
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except ValueError as error:
            raise InvalidRequest(f"the settings of the connection are no JSON: {error}") from error
    found: dict[str, str] = {}
    if not isinstance(settings, Mapping):
        raise InvalidRequest(
            f"the settings of the connection cannot be {settings!r}",
            hint='Give sections with keys, {"pipeline": {"consistency": "LOCAL_QUORUM"}}',
        )
    _collect(found, PREFIX.rstrip("_"), settings)
    return found


def _collect(found: dict[str, str], name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _collect(found, f"{name}__{key}", value)
        elif value is not None:
            # The names of storage options are kept as they are: some storages tell upper case from lower case.
            parts = f"{name}__{key}".split("__")
            spelt = [part.upper() for part in parts[:3]] + parts[3:]
            found["__".join(spelt)] = json.dumps(value) if isinstance(value, bool) else str(value)
