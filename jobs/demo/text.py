"""The demo's report for people: a timeline, the nodes at three moments, figures, and what was checked."""

from __future__ import annotations

from collections.abc import Iterator

from epochlake.jobs.demo.checks import Check
from epochlake.jobs.demo.report import DemoReport, Throughput
from epochlake.jobs.demo.story import Holding, Moment
from epochlake.jobs.demo.timeline import Stretch
from epochlake.jobs.printing import bold, size, table
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SHOWN_FINDINGS = 5


def report(document: DemoReport) -> Iterator[RenderableType]:
    """What is printed, part by part."""
    yield Text(
        f"{document.source.rows:,} flights are written month by month, at QUORUM to three replicas; "
        "meanwhile two nodes join and one is lost.\n"
    )
    yield _headed("What happened", _timeline(document.timeline))
    yield _headed("Where the rows are: tablets and rows of each node", _nodes(document.nodes))
    yield _headed("How fast", _throughput(document.throughput))
    yield _headed("What was checked", _checks(document.checks))
    yield _verdict(document)


def _headed(title: str, content: RenderableType) -> Group:
    return Group(bold(title), Text(), content, Text())


def _timeline(stretches: tuple[Stretch, ...]) -> Table:
    made = table("seconds", "epochs", "the pipeline", "the cluster, meanwhile", right=["seconds"])
    made.columns[2].no_wrap = made.columns[3].no_wrap = False
    made.columns[2].ratio, made.columns[3].ratio = 1, 1
    for stretch in stretches:
        made.add_row(
            f"{stretch.since:.1f}",
            _range(stretch.epochs),
            Text(stretch.pipeline, style="bright_black" if stretch.batch is None else ""),
            Text("; ".join(stretch.cluster)),
        )
    return made


def _range(epochs: tuple[int, int] | None) -> str:
    if epochs is None:
        return ""
    first, last = epochs
    return str(first) if first == last else f"{first}–{last}"


def _nodes(moments: tuple[Moment, ...]) -> Table:
    titles = [f"{moment.name}\n(epoch {moment.epoch})" for moment in moments]
    made = table("node", "rack", *titles, right=titles)
    known: dict[str, str] = {}
    for moment in moments:
        for holding in moment.holdings:
            known.setdefault(holding.node, holding.rack)
    for node, rack in known.items():
        made.add_row(node, rack, *(_holding(moment, node) for moment in moments))
    totals = [sum(holding.rows for holding in moment.holdings) for moment in moments]
    made.add_row("all", "", *(Text(f"{total:,}", style="bold") for total in totals))
    return made


def _holding(moment: Moment, node: str) -> Text:
    found: Holding | None = next((holding for holding in moment.holdings if holding.node == node), None)
    if found is None:
        gone = node in moment.lost
        return Text("lost" if gone else "–", style="red" if gone else "bright_black")
    return Text(f"{found.tablets} / {found.rows:,}")


def _throughput(figures: Throughput) -> Table:
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(justify="right", no_wrap=True)
    made.add_column(overflow="fold")
    made.add_row(
        "written",
        f"{figures.rows_written_per_second:,} rows/s",
        f"{figures.rows_written:,} rows in {figures.write_seconds:.1f} s, "
        f"{size(figures.stored_bytes)} stored with all replicas",
    )
    made.add_row(
        "read at QUORUM",
        f"{figures.rows_read_per_second:,} rows/s",
        f"{figures.rows_read:,} rows in {figures.read_seconds:.1f} s, all columns, merged by key",
    )
    streamed = figures.streamed
    if streamed is not None:
        reverted = f", {streamed.tablets_reverted} taken back" if streamed.tablets_reverted else ""
        made.add_row(
            "streamed",
            size(streamed.bytes_streamed) or "",
            f"{streamed.tablets_moved} tablet replicas moved or rebuilt{reverted}",
        )
    made.add_row("committed", f"{figures.epochs:,} epochs", "each a change of the cluster metadata, in the log")
    return made


def _checks(checks: tuple[Check, ...]) -> Table:
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold", ratio=1)
    for check in checks:
        mark = Text("✓", style="bold green") if check.holds else Text("✗", style="bold red")
        lines = Text(check.figures if check.holds or not check.findings else "")
        _append(lines, check.findings, "red")
        _append(lines, check.notes, "yellow")
        made.add_row(mark, check.name, lines)
    return made


def _append(lines: Text, what: tuple[str, ...], style: str) -> None:
    for one in what[:SHOWN_FINDINGS]:
        lines.append("\n" if lines.plain else "").append(one, style=style)
    if len(what) > SHOWN_FINDINGS:
        lines.append(f"\nand {len(what) - SHOWN_FINDINGS} more", style=style)


def _verdict(document: DemoReport) -> Text:
    failed = [check.name for check in document.checks if not check.holds]
    line = Text(no_wrap=True, overflow="ignore")
    if failed:
        line.append("✗ ", style="bold red")
        line.append(f"{len(failed)} of {len(document.checks)} checks failed", style="bold")
        line.append(f", after {document.seconds:.0f} s. Everything is kept in\n  {document.root}")
        return line
    line.append("✓ ", style="bold green")
    line.append(f"All {len(document.checks)} checks hold", style="bold")
    line.append(f", after {document.seconds:.0f} s.")
    if document.kept:
        line.append(f" To look around:\n  epochlake --conf {document.root}/epochlake.toml status")
    return line
