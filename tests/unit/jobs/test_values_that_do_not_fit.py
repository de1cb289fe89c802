"""Values that a column cannot hold: the error names column and value in words of its own, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from epochlake.jobs.cluster import Cluster
from epochlake.jobs.exchange.filters import value_of
from epochlake.jobs.gate.merge_expressions import expression_of
from epochlake.metastore.metadata.model import Column
from epochlake.placement.errors import InvalidRequest

from tests.support.clusters import FOUR, placed, without_zookeeper

FLIGHTS = "air.flights"
COLUMNS = {
    "tiny": "tinyint",
    "big": "bigint",
    "short": "float",
    "long": "double",
    "price": "decimal(8,2)",
    "most": "decimal(38,2)",
    "note": "string",
    "prices": "array<decimal(8,2)>",
    "named": "map<string,decimal(8,2)>",
    "pair": "struct<a:int,d:decimal(8,2)>",
}
OF_PYTHON: dict[str, list[tuple[object, str]]] = {
    "tiny": [(300, "300 is out of its range: whole numbers from -128 to 127"), (2**200, "is out of its range")],
    "big": [(2**63, "9223372036854775808 is out of its range"), (-(2**63) - 1, "-9223372036854775809 is out of its")],
    "short": [(2**24 + 1, "16777217 is a whole number beyond 16777216"), (1e300, r"1e\+300 is too large for a float")],
    "long": [(2**53 + 1, "a whole number beyond 9007199254740992"), ("x", "'x' is no number")],
    "price": [
        (Decimal("1234567.00"), r"Decimal\('1234567.00'\) is too large: it has more than 6 digits before the point"),
        (10**30, "is too large: it has more than 6 digits"),
        (Decimal("1E+400"), r"Decimal\('1E\+400'\) is too large"),
        (Decimal("sNaN"), r"Decimal\('sNaN'\) is no decimal number"),
        (Decimal("0.001"), "more than 2 digits after the point"),
    ],
    "note": [("\ud800", r"'\\ud800' is no text that UTF-8 has")],
    "prices": [([Decimal(1), Decimal(10**6)], r"Decimal\('1000000'\) is too large")],
    "named": [({"a": Decimal("NaN")}, r"Decimal\('NaN'\) is no decimal number"), ({None: Decimal(1)}, "is none that")],
    "pair": [({"a": 2**31, "d": None}, "2147483648 is out of its range: whole numbers from -2147483648 to 2147483647")],
}
"""By column: a value of Python, and what is said of it."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    without_zookeeper(monkeypatch)
    columns = [("id", "bigint", False), *((name, kind, True) for name, kind in COLUMNS.items())]
    with placed(tmp_path, FOUR, {0: "ABC"}, columns=columns).cluster as opened:
        yield opened


def row(**values: object) -> dict[str, object]:
    return {"id": 1, **dict.fromkeys(COLUMNS), **values}


def wrong_decimal(precision: int, unscaled: int) -> pa.Array:
    """A decimal with more digits than its type says, which Arrow makes without a look at it."""
    digits = pa.py_buffer(unscaled.to_bytes(16, "little", signed=True))
    return pa.Array.from_buffers(pa.decimal128(precision, 2), 1, [None, digits])


def long_decimals(count: int) -> pa.Array:
    """So many decimals with more digits than decimal(8,2) has."""
    digits = (10**9).to_bytes(16, "little", signed=True) * count
    return pa.Array.from_buffers(pa.decimal128(8, 2), count, [None, pa.py_buffer(digits)])


def test_decimals_that_are_below_a_null_or_beside_the_window_of_an_array_are_not_there(cluster: Cluster) -> None:
    keys, words = pa.array(["a", "b"]), long_decimals(2)
    null = pa.array([True, False])
    masked = {
        "named": pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), keys, words, mask=null),
        "prices": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), words, mask=null),
        "pair": pa.StructArray.from_arrays([pa.array([1, 2], pa.int32()), words], ["a", "d"], mask=null),
        "price": pa.Array.from_buffers(words.type, 2, [pa.py_buffer(b"\x02"), words.buffers()[1]]),
    }
    for number, (name, values) in enumerate(masked.items()):
        assert values.is_null().to_pylist() == [True, False]
        written = pa.table(
            {
                "id": pa.array([number]),
                **{other: pa.nulls(1) for other in COLUMNS if other != name},
                name: values.slice(0, 1),
            }
        )
        cluster.write(FLIGHTS, written)
        with pytest.raises(InvalidRequest, match=f"column {name} is .* is too large"):
            cluster.write(FLIGHTS, written.set_column(written.column_names.index(name), name, values.slice(1, 1)))
    assert cluster.count(FLIGHTS) == len(masked)


def test_a_value_of_python_that_does_not_fit_is_named_with_its_column(cluster: Cluster) -> None:
    for name, given in OF_PYTHON.items():
        for value, said in given:
            frame = pd.DataFrame({key: pd.Series([one], dtype=object) for key, one in row(**{name: value}).items()})
            for rows in ([row(), row(**{name: value, "id": 2})], frame):
                with pytest.raises(InvalidRequest, match=f"column {name} is .*{said}") as refused:
                    cluster.write(FLIGHTS, rows)
                assert "Correct this value" in refused.value.hint
    assert cluster.count(FLIGHTS) == 0


def test_the_greatest_values_that_fit_are_written_as_they_are(cluster: Cluster) -> None:
    most = row(tiny=-128, big=2**63 - 1, short=2**24, long=-(2**53), price=Decimal("-999999.99"))
    most |= {"most": Decimal("9" * 36 + ".99"), "prices": [Decimal("999999.99"), None], "note": "\U0001f30a"}
    cluster.write(FLIGHTS, [most])
    assert cluster.get(FLIGHTS, 1) == most


def test_a_decimal_of_arrow_with_more_digits_than_its_type_is_refused(cluster: Cluster) -> None:
    one, decimal = pa.array([0, 1], pa.int32()), wrong_decimal(8, -(10**38))
    wrong = {
        "price": decimal,
        "most": wrong_decimal(38, -(10**38)),
        "prices": pa.ListArray.from_arrays(one, decimal),
        "named": pa.MapArray.from_arrays(one, pa.array(["a"]), decimal),
        "pair": pa.StructArray.from_arrays([pa.array([1], pa.int32()), decimal], ["a", "d"]),
    }
    for name, values in wrong.items():
        rows = pa.table({key: values if key == name else pa.array([given]) for key, given in row().items()})
        inserted = cluster.merge(FLIGHTS, rows).when_not_matched_insert_all()
        digits = 36 if name == "most" else 6
        said = f"column {name} is .*: Decimal\\('-1.*'\\) is too large: it has more than {digits} digits"
        for act in (cluster.write, cluster.overwrite):
            with pytest.raises(InvalidRequest, match=said):
                act(FLIGHTS, rows)
        with pytest.raises(InvalidRequest, match=said):
            inserted.execute()
    assert cluster.count(FLIGHTS) == 0


def test_a_column_of_pandas_that_arrow_cannot_have_is_named_with_its_type(cluster: Cluster) -> None:
    of_no_arrow = [
        pd.Series(pd.arrays.SparseArray([1])),
        pd.Series(pd.Categorical([1], categories=[1, "a"])),
        pd.Series([1j]),
        pd.Series(np.array([1], dtype="longdouble")),
    ]
    for series in of_no_arrow:
        rows = pd.DataFrame({"id": [1], "big": series})
        said = "column big is .* of pandas, which Arrow cannot have"
        with pytest.raises(InvalidRequest, match=said) as refused:
            cluster.write(FLIGHTS, rows)
        assert 'frame["big"].astype' in refused.value.hint
        with pytest.raises(InvalidRequest, match=said):
            cluster.merge(FLIGHTS, rows).when_matched_update_all().execute()


def test_a_merge_takes_texts_and_bytes_as_polars_gives_them(cluster: Cluster) -> None:
    cluster.write(FLIGHTS, [row(note="old")])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([5], pa.int64()))
    source = pa.table({"id": [1, 2], "text": pa.array(["new", "added"], pa.string_view()), "n": runs})
    merge = cluster.merge(FLIGHTS, source).when_matched_update({"note": "source.text", "big": "source.n"})
    merged = merge.when_not_matched_insert({"note": "source.text"}).execute()
    assert (merged.updated, merged.inserted) == (1, 1)
    assert cluster.get(FLIGHTS, 1) == row(note="new", big=5)
    assert cluster.get(FLIGHTS, 2) == row(note="added", id=2)


def test_what_a_merge_is_given_and_no_column_can_hold_is_named(cluster: Cluster) -> None:
    cluster.write(FLIGHTS, [row()])

    def merged(values: object, **source: object) -> None:
        cluster.merge(FLIGHTS, [{"id": 1, **source}]).when_matched_update(values).execute()  # type: ignore[arg-type]

    with pytest.raises(InvalidRequest, match="a merge sets column big to 9223372036854775808, which is no value of"):
        merged({"big": 2**63})
    with pytest.raises(InvalidRequest, match="column z of the source has 1180591620717411303424, which is no value of"):
        merged({"big": "source.z"}, z=2**70)
    with pytest.raises(InvalidRequest, match="has no column 5"):
        merged({5: 5})
    mixed = cluster.merge(FLIGHTS, [{"id": 1, "z": 1}, {"id": 2, "z": "x"}]).when_matched_update({"big": "source.z"})
    with pytest.raises(InvalidRequest, match="column z of the source has values that are of no one type"):
        mixed.execute()
    assert cluster.get(FLIGHTS, 1) == row()


@pytest.mark.parametrize("text", ["9" * 20, "9" * 90, "0." + "9" * 90, f"source.n = {'9' * 90}"])
def test_a_number_in_a_text_of_a_merge_that_is_too_large_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"the number (0[.])?9{19,60}…? of a merge is larger than any column"):
        expression_of(text)


def test_a_moment_that_utc_has_no_year_for_is_no_time_of_a_read(cluster: Cluster) -> None:
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(InvalidRequest, match="not within the years 1 to 9999 of UTC"):
            cluster.get(FLIGHTS, 1, as_of=moment)


def test_keys_that_are_no_rows_are_told_in_which_form_to_give_them(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match=r"row 0 of the keys for table .* is an int") as refused:
        cluster.scan(FLIGHTS, keys=[5])
    assert '[{"id": …}]' in refused.value.hint


@pytest.mark.parametrize(
    ("type_", "text"), [("float", "1e39"), ("double", "-1e999"), ("tinyint", "0xff"), ("int", "'0xffffffff'")]
)
def test_a_filter_says_no_number_that_another_one_would_be_made_of(type_: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is no {type_}, as column n is"):
        value_of(Column("n", type_), text)


def test_a_filter_may_say_infinity_and_negative_numbers() -> None:
    found = {text: value_of(Column("n", "float"), text).as_py() for text in ("inf", "-Infinity", "-1.5", "1e38")}
    assert list(found.values()) == [float("inf"), float("-inf"), -1.5, pytest.approx(1e38)]
    assert [value_of(Column("n", "tinyint"), text).as_py() for text in ("-128", "0x7f")] == [-128, 127]
