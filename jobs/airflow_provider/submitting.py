"""Operators for programs beside the worker: jobs for `spark-submit`, and commands of `epochlake`.

Their exit codes say whether a retry may help (75), or never does (2, 3, 4).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from epochlake.jobs.airflow_provider.ending import AirflowFailException, ended_with, task_ends
from epochlake.jobs.airflow_provider.hook import EpochlakeHook
from epochlake.jobs.airflow_provider.naming import TaskOfRun
from epochlake.jobs.airflow_provider.operators import EpochlakeOperator
from epochlake.jobs.airflow_provider.running import Program
from epochlake.placement.errors import InvalidRequest

RUN_VARIABLE = "EPOCHLAKE_RUN"
"""What tells a program the name of its task in its run, for its batches and requests."""


class ProgramOperator(EpochlakeOperator):
    """Runs a program with the connection's cluster in its environment; its exit code decides how the task ends."""

    template_fields: Sequence[str] = ("epochlake_conn_id", "env")

    def __init__(self, *, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.env = env or {}
        self._program: Program | None = None

    def run_program(
        self, context: Mapping[str, Any], command: Sequence[str], defaults: Mapping[str, str] | None = None
    ) -> str:
        """What it printed on stdout. `defaults`: variables that `env` goes before. Raises as its exit code says."""
        name = TaskOfRun.of(context).name
        with task_ends():
            told = EpochlakeHook(self.epochlake_conn_id).variables()
            variables = {**told, **(defaults or {}), **self.env, RUN_VARIABLE: name}
        self._program = Program(lambda line: self.log.info("%s", line))
        self.log.info("run %s", " ".join(command))
        code, printed = self._program.run(command, variables)
        if code:
            called = "epochlake" if tuple(command[: len(_EPOCHLAKE)]) == _EPOCHLAKE else os.path.basename(command[0])
            raise ended_with(code, f"{called} ended with exit code {code}: {self._program.said}")
        return printed

    def on_kill(self) -> None:
        """End the program with the task."""
        if self._program is not None:
            self._program.end()


class EpochlakeSubmitOperator(ProgramOperator):
    """A job for `spark-submit`: a file of yours, or with `job` one of Epochlake's (`compaction`, `repair`, …).

    The job finds its cluster by `epochlake.open_cluster()`, as the connection says, and the name of its task in its run
    in the environment as `EPOCHLAKE_RUN`: a job that names its batches by it lands them once, however often it is
    tried. Killing a worker can leave the job running beside its second try; that lands once, too.

    In client mode, which is the default of `spark-submit`, the exit code of the job is that of the command.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "env", "application", "application_args", "conf", "master")

    def __init__(
        self,
        *,
        application: str | None = None,
        job: str | None = None,
        application_args: Collection[str] = (),
        conf: Mapping[str, str] | None = None,
        master: str | None = None,
        options: Collection[str] = (),
        spark_submit: str | None = None,
        with_delta: bool = True,
        **kwargs: Any,
    ) -> None:
        """`options`: further words for `spark-submit`. `spark_submit`: the command, else that of this Python's PySpark.
        `with_delta`: give the job Delta's jars and settings; not where the Spark there has them.
        """
        super().__init__(**kwargs)
        if (application is None) == (job is None):
            raise ValueError("give an application, or the name of one of Epochlake's jobs")
        self.application = application
        self.job = job
        self.application_args = application_args
        self.conf = conf or {}
        self.master = master
        self.options = options
        self.spark_submit = spark_submit
        self.with_delta = with_delta

    def execute(self, context: Mapping[str, Any]) -> str:
        """Run it; the value is the last line that it has printed, on stdout or stderr."""
        with task_ends():
            command = self._command()
        # Its own PySpark runs jobs by its own Python, which has what they import.
        python = {} if self.spark_submit else {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        printed = self.run_program(context, command, python).splitlines()
        return printed[-1] if printed else ""

    def _command(self) -> list[str]:
        words = [self.spark_submit or _spark_submit()]
        if self.master is not None:
            words += ["--master", self.master]
        if self.with_delta:
            from epochlake.jobs.spark_session import submit_options

            words += submit_options()
        words += [word for key, value in self.conf.items() for word in ("--conf", f"{key}={value}")]
        return [*words, *self.options, self.application or _path_of(self.job or ""), *map(str, self.application_args)]


class EpochlakeCommandOperator(ProgramOperator):
    """A command of `epochlake`, `["log", "compact"]`; its value is the document that the command prints as JSON.

    `named`: the command changes the cluster, and gets the name of the task in its run as its `--request-id`.
    """

    template_fields: Sequence[str] = ("epochlake_conn_id", "env", "arguments")

    def __init__(self, *, arguments: Collection[str], named: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(arguments, str) and "{{" not in arguments:
            raise ValueError(f"arguments is a text: give a list of words, {arguments.split()}")
        self.arguments = arguments
        self.named = named

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Run it."""
        if isinstance(self.arguments, str):
            raise AirflowFailException(f"arguments has become the text {self.arguments!r}: let it be a list of words")
        words = [*map(str, self.arguments)]
        if self.named:
            words += ["--request-id", TaskOfRun.of(context).name]
        printed = self.run_program(context, [*_EPOCHLAKE, "--output", "json", *words])
        return json.loads(printed) if printed.strip() else None


class EpochlakeVerifyOperator(EpochlakeCommandOperator):
    """What must hold, holds: every entry of the log, and that every replica's rows are where they belong.

    Fails for good where something does not; its value says what was looked at.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(arguments=["log", "verify", "--tablets"], **kwargs)


_EPOCHLAKE = (sys.executable, "-m", "epochlake.jobs.cli.entry")


def _spark_submit() -> str:
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise InvalidRequest(
            "PySpark is not installed here, so there is no spark-submit", hint="Install it, or name a spark_submit"
        )
    return os.path.join(found.submodule_search_locations[0], "bin", "spark-submit")


def _path_of(job: str) -> str:
    found = importlib.util.find_spec(f"epochlake.jobs.{job}") if job.isidentifier() else None
    if found is None or found.origin is None or found.submodule_search_locations:
        raise InvalidRequest(
            f"Epochlake has no job {job!r}", hint="Name a module of epochlake.jobs, as docs/cli.md says"
        )
    return found.origin
