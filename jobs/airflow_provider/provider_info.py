"""What Airflow reads of this provider, by the entry point `apache_airflow_provider`; nothing is imported for it."""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "epochlake"
HOOK = "epochlake.jobs.airflow_provider.hook.EpochlakeHook"


def get_provider_info() -> dict[str, Any]:
    """The provider as Airflow's schema of providers has it."""
    return {
        "package-name": "epochlake",
        "name": "Epochlake",
        "description": "Replicated Delta tables whose placement changes by epochs: gated pipelines, sensors, upkeep.",
        "integrations": [{"integration-name": "Epochlake", "external-doc-url": "", "tags": ["software"]}],
        "hooks": [{"integration-name": "Epochlake", "python-modules": [f"{_HOME}.hook"]}],
        "operators": [
            {
                "integration-name": "Epochlake",
                "python-modules": [f"{_HOME}.{name}" for name in ("operators", "submitting", "reviewing")],
            }
        ],
        "sensors": [{"integration-name": "Epochlake", "python-modules": [f"{_HOME}.sensors"]}],
        "triggers": [{"integration-name": "Epochlake", "python-modules": [f"{_HOME}.triggers"]}],
        "asset-uris": [{"schemes": ["epochlake"], "handler": f"{_HOME}.assets.normalised"}],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": HOOK,
                "hook-name": "Epochlake",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema", "login", "password"],
                    "relabeling": {"host": "Root"},
                    "placeholders": {"host": "/lake/root, or a URI; empty: as the configuration file says"},
                },
                "conn-fields": {
                    "conf": {
                        "label": "Configuration file",
                        "schema": {"type": ["string", "null"]},
                        "description": "A path on workers and triggerers; empty: the defaults",
                    },
                    "zookeeper": {
                        "label": "ZooKeeper",
                        "schema": {"type": ["string", "null"]},
                        "description": "host:port,host:port; empty: as the configuration file says",
                    },
                    "settings": {
                        "label": "Further settings",
                        "schema": {"type": ["object", "null"]},
                        "description": 'As in the configuration file: {"pipeline": {"consistency": "LOCAL_QUORUM"}}',
                    },
                },
            }
        ],
    }


_HOME = "epochlake.jobs.airflow_provider"
