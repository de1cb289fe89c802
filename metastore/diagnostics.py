"""Switching on what a process says about itself: Python's logging, on stderr, as the configuration wants it.

Called once by whatever owns the process (the command line, a job, a notebook), never by a library function: a program
that embeds Epochlake keeps its own logging.
"""

from __future__ import annotations

import logging
import logging.config
import tomllib
from pathlib import Path

from epochlake.metastore.configuration import LoggingSettings, at_home
from epochlake.metastore.errors import ConfigurationError

_QUIET = ("kazoo", "py4j")


def start_logging(settings: LoggingSettings) -> None:
    """Log as `settings.file` says (TOML for `dictConfig`), or else from `settings.level` on to stderr.

    Raises `ConfigurationError`, naming the file, when it cannot be read or means nothing to `dictConfig`.
    """
    if settings.file:
        _from_file(Path(at_home(settings.file)))
        return
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("epochlake").setLevel(settings.level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


def _from_file(file: Path) -> None:
    try:
        logging.config.dictConfig(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(
            f"[logging] file is {file}, which cannot be read: {error.strerror}", hint="Name one like conf/logging.toml"
        ) from error
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise ConfigurationError(
            f"[logging] file is {file}, which does not configure logging: {error}",
            hint="Compare it with conf/logging.toml",
        ) from error
