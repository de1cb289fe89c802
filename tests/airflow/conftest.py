"""What the tests of the provider share. They run in an environment with Airflow: `make test-airflow`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# Airflow makes its home when it is imported first, which tests of one process do.
_HOME = tempfile.mkdtemp(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"

if importlib.util.find_spec("airflow") is None:
    # Who runs all that is marked, in the environment without it, asks for none of these. Alone they are no tests then,
    # which is a failure.
    collect_ignore_glob = ["test_*.py"]


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of the example DAGs."""
    from epochlake.jobs.airflow_provider import examples

    return Path(examples.__path__[0])
