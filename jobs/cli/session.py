"""What all commands share: the global options, the cluster that they lead to, and the two ways to show a document.

A command makes a document (a struct with stable keys), and only here is decided whether it is printed as
JSON or by a renderer. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from epochlake.jobs.cluster import Cluster, log_place
from epochlake.jobs.printing import without_trailing_blanks
from epochlake.metastore import configuration as configurations
from epochlake.metastore.configuration import Configuration
from epochlake.metastore.diagnostics import start_logging
from epochlake.metastore.errors import NotInitialised
from epochlake.metastore.log.epoch_log import EpochLog
from epochlake.metastore.log.log_place import LogPlace
from epochlake.metastore.metastore import log_below
from epochlake.metastore.root import Root, require_new
from epochlake.metastore.storage.storage import Storage
from epochlake.placement.errors import EpochlakeError, words_of
from rich.console import Console, RenderableType
from rich.text import Text

logger = logging.getLogger(__name__)

D = TypeVar("D")

WITHOUT_END = 10_000
"""The width where nobody looks at lines: what other programs read is neither cut nor wrapped."""


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


class Session:
    """One run of the command line; close it at the end."""

    def __init__(self, conf: Path | None, root: str | None, output: Output, verbose: bool) -> None:
        self.output = output
        self.verbose = verbose
        self._conf = conf
        self._root = root
        self._open = ExitStack()
        self._cluster: Cluster | None = None
        self._configuration: Configuration | None = None
        self.console = _console()
        self.errors = Console(stderr=True, highlight=False)

    @property
    def configuration(self) -> Configuration:
        """The configuration, with `--root` and `--verbose` put over it; logging is on from then on."""
        if self._configuration is None:
            loaded = configurations.load(self._conf, root=self._root)
            settings = loaded.logging
            if self.verbose:
                settings = msgspec.structs.replace(settings, level="DEBUG")
            start_logging(settings)
            self._configuration = loaded
        return self._configuration

    @property
    def conf_file(self) -> str | None:
        """The configuration file that was named, for a process that is started with it."""
        return None if self._conf is None else str(self._conf.absolute())

    @property
    def places(self) -> Root:
        """Where log and snapshots are, also of a cluster that cannot be opened."""
        return Root(self.configuration.root)

    @property
    def cluster(self) -> Cluster:
        """The cluster at the root, opened on first use."""
        if self._cluster is None:
            self._cluster = self._open.enter_context(
                Cluster(self.configuration, storage=self.storage, log_place=self.log_place)
            )
            if self.configuration.agents.ask:
                from epochlake.jobs.cli.asking_agents import ensemble_heard

                self._cluster.others = ensemble_heard(self)
        return self._cluster

    def known_cluster_id(self) -> str | None:
        """The id of the cluster at the root; None where none has begun there, or its log cannot be read now."""
        try:
            return self.cluster.metadata.identity.cluster_id
        except EpochlakeError as error:
            logger.info("the id of the cluster at %s is not known: %s", self.configuration.root, error)
            return None

    @cached_property
    def storage(self) -> Storage:
        """Storage with the settings of the configuration, for what is looked at without opening the cluster."""
        return Storage(self.configuration.storage)

    @cached_property
    def log_place(self) -> LogPlace:
        """Where the log is, also of a cluster that cannot be opened."""
        return log_place(self.configuration) or log_below(self.configuration, self.storage)

    def log(self) -> EpochLog:
        """A handle on the log, also of a cluster that cannot be opened. Raises LogUnreadable where it has gone."""
        require_new(self.storage, self.places, self.log_place)
        return self.log_place.open()

    def epoch_of(self, request_id: str) -> int | None:
        """The epoch that a request was committed as, by the log as it is now; None when it is not in it."""
        try:
            return self.log_place.open().request_epochs(2**63 - 1).get(request_id)
        except NotInitialised:
            return None

    def show(self, document: D, text: Callable[[D], RenderableType | list[RenderableType]]) -> None:
        """Print a document: as JSON, or what `text` makes of it. Raises EpochlakeError where it cannot be written."""
        with _printing():
            if self.output is Output.JSON:
                sys.stdout.write(as_json(document) + "\n")
                sys.stdout.flush()
                return
            rendered = text(document)
            for part in rendered if isinstance(rendered, list) else [rendered]:
                if isinstance(part, Text) and part.no_wrap:
                    self.console.out(part.plain, highlight=False)  # to be copied: one line, however wide a terminal is
                else:
                    self.console.print(without_trailing_blanks(self.console, part), end="")

    def warn(self, message: str) -> None:
        """A line on stderr for what is wrong but does not end the command."""
        print(f"epochlake: {message}", file=sys.stderr)

    def close(self) -> None:
        self._open.close()


@contextmanager
def _printing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        raise EpochlakeError(
            f"what the command prints cannot be written: {error.strerror or words_of(error)}",
            hint="Print it to where there is room; what the command has changed stays changed",
        ) from error


def _console() -> Console:
    """What data is printed to: as wide as the terminal, or as `COLUMNS` says; a file or a pipe has no width."""
    console = Console(highlight=False, soft_wrap=False)
    if not (console.is_terminal or console.is_jupyter or os.environ.get("COLUMNS")):
        console.width = WITHOUT_END
    return console


def as_json(document: Any) -> str:
    """A document as indented JSON, its keys in their order."""
    return msgspec.json.format(msgspec.json.encode(_with_words(document), enc_hook=_in_words), indent=2).decode()


def as_json_line(row: Any) -> str:
    """A row as one line of JSON, with the values that `as_json` has."""
    return msgspec.json.encode(_with_words(row), enc_hook=_in_words).decode()


def _with_words(value: Any) -> Any:
    """Rows with texts for the numbers that JSON has no word for, which would be null as if there was no value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _NO_NUMBER.get(value, "NaN")
    if isinstance(value, dict):
        return {key: _with_words(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_words(one) for one in value]
    return value


def _in_words(value: Any) -> str:
    """A value of files that no table has, such as a moment with nanoseconds, which pandas has."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


_NO_NUMBER = {math.inf: "Infinity", -math.inf: "-Infinity"}
