"""Pictures: what is drawn is what metadata, log and replicas say; any reader can see it, without a network."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from epochlake import pictures
from epochlake.jobs import administration
from epochlake.jobs.pictures import heat, style
from epochlake.jobs.pictures.arcs import Arcs, arcs_of, arcs_of_answer
from epochlake.jobs.pictures.flows import MOST_FLOWS, draw_flows, flows_between, flows_of_plan
from epochlake.jobs.pictures.heat import draw_heat, heat_of
from epochlake.jobs.pictures.ring import draw_ring, only_written
from epochlake.jobs.pictures.timeline import SHOWN_BY_BARS, timeline_of
from epochlake.jobs.replicas.opening import address_of
from epochlake.jobs.replicas.replica import open_snapshot
from epochlake.jobs.views.balancing import BalancePlan, MovePlanned, NodeBalance
from epochlake.jobs.views.streamed_bytes import Arrivals, arrivals
from epochlake.jobs.views.what_if import parse_keyspace, with_operations
from epochlake.metastore.following.history import entries
from epochlake.metastore.metadata.cluster import ClusterMetadata
from epochlake.metastore.metadata.events import CreateKeyspace
from epochlake.metastore.metadata.placements import index_of
from epochlake.placement.errors import InvalidRequest
from epochlake.placement.ring.state import Step
from epochlake.placement.tokens import MAX_TOKEN, MIN_TOKEN
from epochlake.placement.what_if.simulate import simulate

from tests.support.clusters import FOUR, SmallCluster, placed, without_zookeeper
from tests.support.histories import (
    INITIALISE,
    applied,
    joined,
    joined_ring,
    keyspace,
    register,
    ring_cluster,
    small_cluster,
    start,
    steps,
    table,
)
from tests.support.rings import FOUR as FOUR_ON_A_RING
from tests.support.rings import JOINER, RingCluster, ringed

WHITE, JUPYTER_DARK = (255, 255, 255), (17, 17, 17)


def some_tokens(seed: int = 1) -> list[int]:
    dice = random.Random(seed)
    return [MIN_TOKEN, MIN_TOKEN + 1, -1, 0, MAX_TOKEN, *(dice.randrange(MIN_TOKEN, MAX_TOKEN) for _ in range(300))]


def there(arcs: Arcs, token: int, replicas: str = "reads") -> list[str]:
    row = int(np.searchsorted(arcs.lows, token, side="right")) - 1
    return [arcs.nodes[node] for node in getattr(arcs, replicas)[row].tolist() if node >= 0]


def half_joined(*done: Step) -> ClusterMetadata:
    """A ring on which m7 is joining, and is so far."""
    metadata = ring_cluster(volumes=2)
    metadata = applied([register(metadata, "m7", rack="r1")], metadata)
    metadata = applied([start(metadata, "join-m7")], metadata)
    return applied(steps("join-m7", *done), metadata)


# The ring


@pytest.mark.parametrize(
    ("metadata", "name", "drawn"),
    [
        (small_cluster(), "air.flights", "air.flights"),
        (ring_cluster(), "sky", "sky.stars"),
        (ring_cluster(volumes=3), "sky.stars", "sky.stars"),
        (half_joined(Step.START), "sky", "sky.stars"),
        (half_joined(Step.START, Step.MID), "sky", "sky.stars"),
    ],
)
def test_arcs_say_of_every_token_what_the_metadata_says(metadata: ClusterMetadata, name: str, drawn: str) -> None:
    arcs = arcs_of(metadata, name)
    placements = metadata.placements(metadata.table(drawn).table_id)
    for token in some_tokens():
        placement = placements.placement(int(index_of(placements.lows, np.array([token]))[0]))
        for replicas, volumes in (("reads", placement.reads), ("writes", placement.writes)):
            names = [metadata.directory.node_of_volume[volume].name for volume in volumes]
            assert there(arcs, token, replicas) == names
    assert arcs.lengths.sum() == pytest.approx(1)


def test_who_is_coming_is_drawn_apart() -> None:
    settled, coming = arcs_of(ring_cluster(), "sky"), arcs_of(half_joined(Step.START), "sky")
    assert (only_written(settled) < 0).all()
    named = {coming.nodes[node] for node in only_written(coming).ravel().tolist() if node >= 0}
    assert named == {"m7"}
    drawn = [trace.name for trace in draw_ring(coming).data]
    assert "m7: writes only" in drawn
    assert "m7" not in drawn
    assert not [trace.name for trace in draw_ring(settled).data if "writes" in trace.name]


def test_every_share_of_the_ring_is_drawn_once_for_each_replica() -> None:
    for metadata, name, replicas in ((ring_cluster(), "sky", 3), (small_cluster(), "air.flights", 2)):
        widths = [width for trace in draw_ring(arcs_of(metadata, name)).data for width in trace.width]
        assert sum(widths) == pytest.approx(360 * replicas)


def test_a_great_ring_is_drawn_as_equal_arcs_of_what_is_in_their_middle() -> None:
    dice = np.random.default_rng(3)
    lows = np.unique(np.append(dice.integers(MIN_TOKEN, MAX_TOKEN, 16_000), MIN_TOKEN))
    reads = dice.integers(0, 1_000, (len(lows), 3))
    arcs = Arcs("a great one", lows, reads, reads, tuple(f"n{i}" for i in range(1_000)), ("dc1/r1",) * 1_000)
    sampled = arcs.sampled(720)
    assert len(sampled.lows) == 720
    step = 2**64 // 720
    for row in (0, 1, 359, 719):
        assert there(sampled, int(sampled.lows[row])) == there(arcs, int(sampled.lows[row]) + step // 2)
    figure = draw_ring(arcs)
    assert "drawn as 720 arcs" in figure.layout.title.text
    assert [trace.name for trace in figure.data] == ["dc1/r1"], "a thousand nodes have no colours of their own"
    assert figure.layout.showlegend, "what is alone has a name as well"


def test_a_what_if_is_drawn_at_each_step() -> None:
    document = {
        "nodes": [
            {"id": number, "address": f"10.0.0.{number}", "dc": "dc1", "rack": f"r{number}", "tokens": [token]}
            for number, token in ((1, -(2**62)), (2, 0), (3, 2**62))
        ],
        "keyspaces": [{"name": "shop", **parse_keyspace("shop:dc1=2")[1]}],
    }
    answer = simulate(with_operations(document, ["join 10.0.0.4 dc1/r4 tokens=1"]))
    before, after = arcs_of_answer(answer, "shop", -1), arcs_of_answer(answer, "shop")
    assert before.nodes[:3] == ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    for arcs, stage in ((before, answer["start"]), (after, answer["steps"][-1])):
        for token in some_tokens(2)[1:]:  # no row has the lowest one
            held = [
                nodes
                for low, high, nodes in stage["placements"]["shop"]["reads"]
                if (low < token <= high) or (low >= high and (token > low or token <= high))
            ]
            expected = {arcs.nodes[node - 1] for nodes in held for node in nodes}
            assert set(there(arcs, token)) == expected, token
    assert "10.0.0.4" in {one for token in some_tokens() for one in there(after, token)}
    whole = arcs_of_answer(simulate(document), "shop")
    assert all(there(whole, token) == there(before, token) for token in some_tokens())
    for wrong in (-2, len(answer["steps"])):
        with pytest.raises(InvalidRequest, match="has no step"):
            arcs_of_answer(answer, "shop", wrong)
    with pytest.raises(InvalidRequest, match="no keyspace 'nothing'"):
        arcs_of_answer(answer, "nothing")


# Flows


def test_what_flows_to_a_node_is_what_it_gains() -> None:
    before, after = arcs_of(ring_cluster(), "sky"), arcs_of(joined_ring(ring_cluster(), "m7", rack="r1"), "sky")
    flows = flows_between(before, after, 10**12)
    gained = sum(
        share
        for share, row in zip(after.lengths.tolist(), after.reads.tolist(), strict=True)
        if after.nodes.index("m7") in row
    )
    assert gained > 0
    assert {flow.target for flow in flows.flows} == {"m7"}
    assert sum(flow.bytes for flow in flows.flows) == pytest.approx(gained * 10**12, abs=100)
    assert {flow.source for flow in flows.flows} <= {"m1", "m4"}, "a rack's tokens go to another node of the rack"
    assert flows_between(after, after, 10**12).flows == ()
    none = draw_flows(flows_between(after, after), "none")
    assert "nothing moves" in none.layout.title.text
    assert not none.layout.xaxis.visible, "axes of nothing would have numbers"
    assert not none.layout.yaxis.visible


def a_plan(count: int) -> BalancePlan:
    moves = tuple(
        MovePlanned(1, "air.flights", number, f"n{number}/d0", f"n{number + 1}/d0", 10 + number, "because")
        for number in range(count)
    )
    return BalancePlan(1, True, moves, tuple(NodeBalance(f"n{i}", "normal", 1, 0, 0, 0, 0) for i in range(3)), ())


def test_many_flows_are_drawn_as_the_greatest_and_the_rest() -> None:
    flows = flows_of_plan(a_plan(500))
    figure = draw_flows(flows, "many")
    [sankey] = figure.data
    assert len(sankey.link.value) == MOST_FLOWS
    assert sum(sankey.link.value) == sum(flow.bytes for flow in flows.flows)
    assert "500 pairs of nodes; 421 small flows are one" in figure.layout.title.text


def test_a_plan_of_tablets_without_bytes_is_drawn_by_their_number() -> None:
    plan = BalancePlan(1, True, (MovePlanned(1, "a.b", 0, "n1/d", "n2/d", 0, ""),) * 3, (), ())
    [flow] = flows_of_plan(plan).flows
    assert (flow.source, flow.target, flow.bytes, flow.pieces) == ("n1", "n2", 3, 3)
    told = draw_flows(flows_of_plan(plan), "unmeasured")
    assert ">3 tablets, between 1 pair of nodes<" in told.layout.title.text, (
        "no share of tokens: nobody has reckoned it"
    )


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"a int is no plan\. Hand over what `cluster\.plan_balance"):
        pictures.flows(7)  # type: ignore[arg-type]


# The heat map


def test_cells_are_what_volumes_hold_and_a_plan_moves_them() -> None:
    metadata = small_cluster()
    sizes = {
        ("id-flights", tablet, volume): 100 * tablet + volume
        for tablet in range(4)
        for volume in metadata.tablets.maps["id-flights"].replicas(tablet)
    }
    plan = BalancePlan(
        metadata.epoch,
        True,
        (MovePlanned(1, "air.flights", 2, "n3/d0", "n4/d0", sizes["id-flights", 2, 3], ""),),
        (),
        (),
    )
    found = heat_of(metadata, sizes, plan=plan)
    rows = [name.partition(" ")[2] for name in found.rows]
    assert rows == ["n1/d0", "n2/d0", "n3/d0", "n4/d0"]
    for (_, tablet, volume), held in sizes.items():
        assert found.now[volume - 1, tablet] == held
    assert np.nansum(found.now) == sum(sizes.values())
    assert found.after is not None
    assert np.nansum(found.after) == np.nansum(found.now)
    changed = {
        (int(row), int(column)) for row, column in np.argwhere(np.nan_to_num(found.after) != np.nan_to_num(found.now))
    }
    assert changed == {(2, 2), (3, 2)}
    figure = draw_heat(found, "moves")
    assert [trace.type for trace in figure.data] == ["heatmap", "heatmap"]
    with pytest.raises(InvalidRequest, match="Make the plan again"):
        heat_of(joined(metadata, "n5"), sizes, plan=plan)


def test_a_replica_of_no_bytes_has_a_colour_and_no_replica_has_none() -> None:
    metadata = small_cluster()
    volumes = metadata.tablets.maps["id-flights"].replicas(0)
    sizes = {("id-flights", 1, volume): 500 for volume in metadata.tablets.maps["id-flights"].replicas(1)}
    missing = next(v for v in range(1, 5) if v not in volumes)
    moves = (MovePlanned(1, "air.flights", 0, f"n{volumes[0]}/d0", f"n{missing}/d0", 0, ""),)
    found = heat_of(metadata, sizes, plan=BalancePlan(metadata.epoch, True, moves, (), ()))
    assert {row + 1 for row in np.flatnonzero(found.now[:, 0] == 0)} == set(volumes)
    assert np.isnan(found.now[missing - 1, 0])
    assert found.after is not None
    assert np.isnan(found.after[volumes[0] - 1, 0])
    assert found.after[missing - 1, 0] == 0
    now, after = draw_heat(found, "empty tablets").data
    assert {now.z[volume - 1][0] for volume in volumes} == {0}
    assert np.isnan(now.z[missing - 1][0])
    assert (now.text[missing - 1][0], after.text[missing - 1][0]) == ("no replica", "0 B")
    unknown = heat_of(metadata, sizes, unmeasured=volumes[:1])
    assert np.isnan(unknown.now[volumes[0] - 1]).all(), "what nobody measured is not 0 bytes"


def test_a_thousand_nodes_and_a_hundred_thousand_tablets_are_cells_that_add_up() -> None:
    nodes, tablets = 1_000, 131_072
    metadata = applied([INITIALISE])
    metadata = joined(metadata, *(f"n{number}" for number in range(40)), volumes=25)
    volumes = 1_000
    starts = np.random.default_rng(5).integers(0, volumes, tablets)
    replicas = (starts[:, None] + np.array([0, 25, 50])) % volumes + 1
    metadata = applied([CreateKeyspace(keyspace(dc1=3)), table("flights", replicas.tolist())], metadata)
    found = heat_of(metadata, None, "air.flights")
    assert found.now.shape == (heat.MOST_ROWS, heat.MOST_COLUMNS)
    assert np.nansum(found.now) == 3 * tablets
    assert (found.volumes, found.tablets) == (nodes, tablets)
    assert "cells are sums of several" in draw_heat(found, "many").layout.title.text


def test_tables_without_tablets_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"sky\.stars is on the ring"):
        heat_of(ring_cluster(), None, "sky.stars")
    with pytest.raises(InvalidRequest, match="no table with tablets"):
        heat_of(joined(applied([INITIALISE]), "n1"), None)


# Of real clusters: the log and the replicas


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    without_zookeeper(monkeypatch)
    made = placed(tmp_path, FOUR, {0: "ABC", 1: "BCA"})
    with made.cluster:
        yield made


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RingCluster]:
    without_zookeeper(monkeypatch)
    made = ringed(tmp_path, FOUR_ON_A_RING)
    with made.cluster:
        yield made


def test_every_epoch_is_a_point_or_shown_by_a_bar(ring: RingCluster) -> None:
    request = ring.add("X", JOINER)
    ring.settle()
    administration.resume_balancing(ring.cluster, reason="to look")
    metadata, log = ring.cluster.catch_up(), entries(ring.cluster.log())
    drawn = timeline_of(log, metadata)
    points = {point.epoch for point in drawn.points}
    for entry in log:
        assert (entry.epoch in points) != isinstance(entry.decode(), SHOWN_BY_BARS), entry.event
    asked = metadata.requests[request]
    lanes = [bar for bar in drawn.bars if bar.lane == "join X"]
    assert min(bar.first for bar in lanes) == asked.requested_epoch
    assert max(bar.last for bar in lanes) == asked.epoch
    at = {entry.epoch: entry.committed_at for entry in log}
    assert all((bar.since, bar.until) == (at[bar.first], at[bar.last]) for bar in drawn.bars)
    assert len({bar.lane for bar in drawn.bars}) == len(metadata.requests)


def test_words_of_people_are_words_and_never_markup(ring: RingCluster, tmp_path: Path) -> None:
    mean = "</script><script>alert(1)</script><a href='x'>b</a>"
    administration.resume_balancing(ring.cluster, reason=mean)
    figure = pictures.timeline(ring.cluster)
    told = [text for trace in figure.data for text in trace.text if "alert" in text]
    assert told
    assert not [text for text in told if "<script" in text or "<a " in text]
    assert "alert(1)</script>" not in pictures.save(tmp_path / "page.html", figure, title=mean).read_text("utf-8")


def test_tablets_that_move_are_a_bar_from_the_first_to_the_last(small: SmallCluster) -> None:
    administration.decommission(small.cluster, "A", reason="old")
    small.settle()
    log = entries(small.cluster.log())
    kinds = Counter(entry.event for entry in log)
    assert kinds["FinishTransitions"]
    drawn = timeline_of(log, small.cluster.catch_up())
    bars = [bar for bar in drawn.bars if bar.kind == "tablets move"]
    assert {bar.lane for bar in bars} == {"air.flights"}
    assert min(bar.first for bar in bars) == next(e.epoch for e in log if e.event == "StartTransitions")
    assert max(bar.last for bar in bars) == [e.epoch for e in log if e.event == "FinishTransitions"][-1]
    late = timeline_of([entry for entry in log if entry.epoch > bars[0].first + 1], small.cluster.metadata)
    assert next(bar.first for bar in late.bars if bar.kind == "tablets move") == bars[0].first + 2


def test_bytes_that_moved_are_what_replicas_got_by_streams_and_not_by_writes(ring: RingCluster) -> None:
    assert arrivals(ring.cluster) == Arrivals((), ())
    ring.add("X", JOINER)
    ring.settle()
    found = arrivals(ring.cluster).found
    assert {(one.node, one.table) for one in found} == {("X", "air.flights")}
    metadata = ring.cluster.metadata
    [volume] = metadata.node("X").volumes
    snapshot = open_snapshot(address_of(ring.cluster.storage, metadata, ring.table, volume.volume_id))
    assert sum(one.bytes for one in found) == sum(file.size for file in snapshot.all_files.values())
    [*_, line] = pictures.moved_bytes(ring.cluster).data
    assert line.y[-1] == sum(one.bytes for one in found)


def test_what_could_not_be_read_is_said(ring: RingCluster) -> None:
    ring.add("X", JOINER)
    ring.settle()
    whole = arrivals(ring.cluster)
    with ring.without("B"):
        assert arrivals(ring.cluster) == Arrivals(whole.found, ("B/d1",))
    [volume] = ring.cluster.metadata.node("X").volumes
    log = Path(address_of(ring.cluster.storage, ring.cluster.metadata, ring.table, volume.volume_id).uri, "_delta_log")
    [*_, newest] = sorted(log.glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    assert arrivals(ring.cluster).unread == ("X/d1",)
    assert "without X/d1, which could not be read" in pictures.moved_bytes(ring.cluster).layout.title.text


def test_what_could_not_be_measured_is_said(small: SmallCluster) -> None:
    small.cluster.write("air.flights", pa.table({"id": range(10), "note": ["x"] * 10}))
    with small.without("A"):
        assert "A/d1 could not be measured" in pictures.tablets(small.cluster).layout.title.text


def test_each_picture_is_a_page_of_its_own_without_a_network(small: SmallCluster, tmp_path: Path) -> None:
    cluster = small.cluster
    cluster.write("air.flights", pa.table({"id": range(100), "note": ["x"] * 100}))
    administration.resume_balancing(cluster, reason="to look")
    drawn = [
        pictures.ring(cluster, "air.flights"),
        pictures.tablets(cluster),
        pictures.tablets(cluster, at=cluster.metadata.epoch - 1),
        pictures.timeline(cluster),
        pictures.timeline(cluster, by="epoch"),
        pictures.moved_bytes(cluster),
        pictures.flows(cluster.plan_balance()),
        pictures.ring_flows(cluster, "air.flights", cluster.metadata.epoch - 1),
    ]
    for figure in drawn:
        assert json.loads(figure.to_json())["layout"]["title"]["text"]
    page = pictures.save(tmp_path / "report.html", *drawn, title="<mine>").read_text(encoding="utf-8")
    assert "<h1>&lt;mine&gt;</h1>" in page
    assert page.count('class="plotly-graph-div"') == len(drawn)
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page), "it loads something"
    assert list(tmp_path.glob(".report*")) == []
    before = os.umask(0o077)
    pictures.save(tmp_path / "mine.html", drawn[0])
    os.umask(before)
    assert (tmp_path / "mine.html").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRequest, match="no picture to save"):
        pictures.save(tmp_path / "report.html")
    with pytest.raises(InvalidRequest, match="cannot be written to"):
        pictures.save(tmp_path / "nowhere" / "report.html", drawn[0])
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_bad_input_is_told_in_one_sentence(small: SmallCluster) -> None:
    cluster = small.cluster
    for call, reason in (
        (lambda: pictures.ring(cluster, "air"), "Name one of them"),
        (lambda: pictures.ring(cluster, "nothing.here"), "there is no table"),
        (lambda: pictures.ring(7, "air"), "a int has no ring"),  # type: ignore[arg-type]
        (lambda: pictures.ring(cluster.metadata, "air.flights", at=1), "Hand over the cluster"),
        (lambda: pictures.timeline(None), "None is no open cluster"),  # type: ignore[arg-type]
        (lambda: pictures.tablets("air.flights"), "'air.flights' is no open cluster"),  # type: ignore[arg-type]
        (lambda: pictures.moved_bytes(7), "7 is no open cluster"),  # type: ignore[arg-type]
        (lambda: pictures.timeline(cluster, 5, 3), "the first of a range comes first"),
        (lambda: pictures.timeline(cluster, by="day"), 'Give by="time" or by="epoch"'),
        (lambda: pictures.tablets(cluster, "no.table"), "there is no table"),
        (lambda: pictures.tablets(cluster, plan=7), "a int is no plan"),  # type: ignore[arg-type]
        (lambda: pictures.ring(cluster, None), "None is no name of"),  # type: ignore[arg-type]
        (lambda: pictures.ring({}, "air"), "is no answer of a what-if"),
        (lambda: pictures.ring({"nodes": [], "steps": []}, "air"), "the what-if has no step"),
        (lambda: pictures.ring_flows(cluster, "air.flights", 9, bytes=-5), "-5 is no number of bytes"),
        (lambda: pictures.save("x.html", "no figure"), "a str is no picture"),  # type: ignore[arg-type]
        (lambda: pictures.timeline(cluster, last="7"), "'7' is no epoch"),  # type: ignore[arg-type]
        (lambda: pictures.timeline(cluster, 2.5), "2.5 is no epoch"),  # type: ignore[arg-type]
        (lambda: pictures.ring(cluster, "air.flights", at="7"), "'7' is no epoch"),  # type: ignore[arg-type]
        (lambda: cluster.nodes(at=2.5), "2.5 is no epoch"),  # type: ignore[arg-type]
        (lambda: cluster.diff("2"), "'2' is no epoch"),  # type: ignore[arg-type]
        (lambda: cluster.history(1, "3"), "'3' is no epoch"),  # type: ignore[arg-type]
    ):
        with pytest.raises(Exception, match=re.escape(reason)):
            call()


# Anybody can see it


def luminance(colour: tuple[int, ...]) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("ground", [WHITE, JUPYTER_DARK])
def test_colours_are_seen_on_white_and_on_dark(ground: tuple[int, ...]) -> None:
    def contrast(colour: str) -> float:
        found = luminance(tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)))
        high, low = sorted((found, luminance(ground)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    assert {colour for colour in style.COLOURS if contrast(colour) < 3} == set()
    assert contrast(style.TEXT) > 4


def test_without_plotly_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "import epochlake\nfrom epochlake import pictures\n"
        "try: pictures.save('x.html', 1)\n"
        "except epochlake.InvalidRequest as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'epochlake[pictures]'" in run.stdout


def test_pictures_are_imported_without_plotly_and_spark() -> None:
    code = "import sys; import epochlake.pictures; print({'plotly', 'pyspark'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
