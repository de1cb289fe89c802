"""`config show` and `config reference`."""

from __future__ import annotations

import sys

import msgspec
import typer
from epochlake.jobs.cli.arguments import of
from epochlake.jobs.cli.documents import ConfigurationRow
from epochlake.jobs.cli.session import Output
from epochlake.jobs.cli.text.others import configuration_rows
from epochlake.metastore.configuration import KEYS, NOT_SHOWN, expected, reference

app = typer.Typer(help="What is configured, and what can be.", no_args_is_help=True)


@app.command("show")
def show(context: typer.Context) -> None:
    """Show every key with the value that it has here. Values of storage options, and secrets, are not shown."""
    session = of(context)
    session.show(_rows(session.configuration), configuration_rows)


@app.command("reference")
def reference_(context: typer.Context) -> None:
    """Print the reference of all keys: Markdown, or rows with `--output json`."""
    session = of(context)
    if session.output is Output.JSON:
        session.show(_rows(session.configuration), configuration_rows)
    else:
        sys.stdout.write(reference())


def _rows(configuration: msgspec.Struct) -> list[ConfigurationRow]:
    rows = []
    for section, keys in KEYS.items():
        holder = getattr(configuration, section) if section else configuration
        for key, kind in keys.items():
            value = msgspec.to_builtins(getattr(holder, key))
            if isinstance(value, dict):
                value = dict.fromkeys(value, "…")
            elif value and (section, key) in NOT_SHOWN:
                value = "…"
            rows.append(ConfigurationRow(section, key, value, expected(kind), _description(kind)))
    return rows


def _description(kind: object) -> str:
    metas = getattr(kind, "__metadata__", ())
    return next((meta.description or "" for meta in metas if isinstance(meta, msgspec.Meta)), "")
