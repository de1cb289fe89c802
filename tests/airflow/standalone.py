"""A real Airflow for tests: API server, scheduler, DAG processor and triggerer on this machine, with SQLite."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.ports import free_port

PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
START_SECONDS = 120.0
END_SECONDS = 20.0
ANSWER_SECONDS = 120.0
"""On a busy machine an answer of the API may take its time."""
EVERY_SECONDS = 0.5
ENDED = {"success", "failed"}


class Airflow:
    """Airflow below a directory, with the DAGs of `dags`; use it in a `with`.

    `variables` are added to the environment of its parts, and so of its tasks.
    """

    def __init__(self, directory: Path, dags: Path, variables: Mapping[str, str]) -> None:
        self.directory = directory
        self._port = free_port()
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""
        self.environment = {
            **os.environ,
            **settings(directory, dags, self._port),
            **variables,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def __enter__(self) -> Self:
        try:
            self.run("db", "migrate")
            for part in PARTS:
                log = (self.directory / f"{part}.log").open("wb")
                words = [part] + (["--workers", "1"] if part == "api-server" else [])
                self._parts[part] = subprocess.Popen(
                    [*airflow_command(), *words],
                    env=self.environment,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            self._wait_for_api()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, *words: str) -> None:
        """Run a command of Airflow."""
        command = [*airflow_command(), *words]
        ended = subprocess.run(command, env=self.environment, cwd=self.directory, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]

    def trigger(self, dag_id: str) -> str:
        """Begin a run of a DAG, which is parsed and unpaused first; its run id.

        The run id is chosen here, so that asking again after an error cannot begin a second run.
        """
        self.unpause(dag_id)
        run_id = f"tests-{secrets.token_hex(8)}"
        try:
            self.ask("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "dag_run_id": run_id})
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise
        return run_id

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run, as soon as it is parsed."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask("PATCH", f"dags/{dag_id}", {"is_paused": False})
                return
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.NOT_FOUND or time.monotonic() > deadline:
                    raise AssertionError(
                        f"{dag_id}: {error} {error.read().decode()}\n{self.import_errors()}"
                    ) from error
                time.sleep(EVERY_SECONDS)

    def ended(self, dag_id: str, run_id: str, seconds: float) -> str:
        """How the run has ended, once it has."""
        deadline = time.monotonic() + seconds
        while (state := self.ask("GET", f"dags/{dag_id}/dagRuns/{run_id}")["state"]) not in ENDED:
            if time.monotonic() > deadline:
                raise AssertionError(f"{dag_id} is {state} after {seconds:.0f} s: {self.tasks(dag_id, run_id)}")
            time.sleep(EVERY_SECONDS)
        return state

    def wait_for_run(self, dag_id: str, seconds: float) -> str:
        """The run id of the first run of a DAG, once there is one."""
        deadline = time.monotonic() + seconds
        while not (runs := self.ask("GET", f"dags/{dag_id}/dagRuns?order_by=start_date")["dag_runs"]):
            if time.monotonic() > deadline:
                raise AssertionError(f"{dag_id} has not begun after {seconds:.0f} s")
            time.sleep(EVERY_SECONDS)
        return runs[0]["dag_run_id"]

    def tasks(self, dag_id: str, run_id: str) -> dict[str, tuple[str, int]]:
        """The state of each task, and the number of its last try."""
        found = self.ask("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {one["task_id"]: (one["state"], one["try_number"]) for one in found}

    def wait_for(self, dag_id: str, run_id: str, task_id: str, states: set[str], seconds: float) -> str:
        """Wait until a task is in one of some states."""
        deadline = time.monotonic() + seconds
        while (state := self.tasks(dag_id, run_id).get(task_id, ("", 0))[0]) not in states:
            if time.monotonic() > deadline:
                raise AssertionError(f"{task_id} is {state} after {seconds:.0f} s: {self.tasks(dag_id, run_id)}")
            time.sleep(EVERY_SECONDS)
        return state

    def value(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """What a task has returned."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value?deserialize=true"
        return self.ask("GET", path)["value"]

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> str:
        """The log of a try."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        return json.dumps(self.ask("GET", path)["content"])

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        """Give a person's answer to a task that asks for one; an answer that is there already is left."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        try:
            self.ask("PATCH", path, {"chosen_options": [option], "params_input": {}})
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    def asset_events(self, name: str) -> list[dict[str, Any]]:
        """The events of an asset, the oldest first."""
        found = self.ask("GET", "assets/events?order_by=timestamp&limit=100")["asset_events"]
        return [event for event in found if event["name"] == name]

    def import_errors(self) -> str:
        """What could not be parsed."""
        return json.dumps(self.ask("GET", "importErrors")["import_errors"])

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """An answer of the public API.

        Its parts share a SQLite database, and an answer that had to wait for it too long is an error of the server:
        asked again for a while. Whoever asks for a change asks so that doing it twice is doing it once.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._request(method, f"/api/v2/{path}", body, {"Authorization": f"Bearer {self._token}"})
            except urllib.error.HTTPError as error:
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                    raise
                time.sleep(EVERY_SECONDS)

    def _wait_for_api(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._token = self._request("GET", "/auth/token")["access_token"]
                return
            except (OSError, KeyError) as error:
                dead = [name for name, part in self._parts.items() if part.poll() is not None]
                if dead or time.monotonic() > deadline:
                    said = "\n".join(f"{name}: {self._said(name)}" for name in dead or PARTS)
                    raise AssertionError(f"Airflow does not start ({error}): {said}") from error
                time.sleep(EVERY_SECONDS)

    def _said(self, part: str) -> str:
        return (self.directory / f"{part}.log").read_text(errors="replace")[-2000:]

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=data,
            method=method,
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as answer:
            text = answer.read().decode()
        return json.loads(text) if text else None

    def _end(self) -> None:
        for part in self._parts.values():
            if part.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(part.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for part in self._parts.values():
            try:
                part.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(part.pid, signal.SIGKILL)
                part.wait()


def settings(directory: Path, dags: Path, port: int) -> dict[str, str]:
    """What such an Airflow is configured with: quick to notice, small, nothing on the network but loopback."""
    return {
        "AIRFLOW_HOME": str(directory),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__INTERNAL_API_SECRET_KEY": secrets.token_hex(16),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{directory}/airflow.db?timeout=60",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(directory / "logs"),
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "AIRFLOW__TRIGGERER__PORT": str(free_port()),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _end_with_parent() -> None:
    """In a part, before it executes: be asked to end when the tests are killed. Does nothing off Linux."""
    with suppress(OSError, AttributeError):
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


def airflow_command() -> list[str]:
    return [sys.executable, "-m", "airflow"]
