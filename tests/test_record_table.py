"""record -> table -> record loses nothing; a table is where scales are tuned."""

import gzip

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_entries import records
from shared_material import SHARED, needs_shared

from calibrant.errors import ConfigError, SchemaError
from calibrant.proto import parse_record, record_entries_of, record_frame
from calibrant.proto.record import RecordEntry

F = np.float32
CONV = RecordEntry("conv", F(0.1), -128, (F(0.5), F(0.25)), (0, 0), skip_fusion=True)
POOL = RecordEntry("pool", F(0.2), 3, (F(1),), (0,))


@given(records, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_nothing_is_lost(entries, random) -> None:
    frame = record_frame(entries)
    again = record_entries_of(frame)
    assert again == entries
    assert [np.array(one.scale_w, F).tobytes() for one in again] == [
        np.array(one.scale_w, F).tobytes() for one in entries
    ]
    order = list(range(frame.height))
    random.shuffle(order)
    shuffled = record_entries_of(frame[order])
    assert sorted(shuffled, key=lambda one: one.key) == sorted(entries, key=lambda one: one.key)


def test_rows_are_channels_and_roles() -> None:
    frame = record_frame([CONV, POOL])
    assert frame.select("key", "role", "channel", "scale", "offset").rows() == [
        ("conv", "data", None, float(F(0.1)), -128),
        ("conv", "weight", 0, 0.5, 0),
        ("conv", "weight", 1, 0.25, 0),
        ("pool", "data", None, float(F(0.2)), 3),
        ("pool", "weight", 0, 1.0, 0),
    ]
    assert frame["skip_fusion"].to_list() == [True, True, True, None, None]
    assert frame.schema["scale"] == pl.Float32


def test_tuned_scale_comes_back() -> None:
    frame = record_frame([CONV, POOL])
    is_data = (pl.col("key") == "conv") & (pl.col("role") == "data")
    tuned = frame.with_columns(scale=pl.when(is_data).then(0.75).otherwise(pl.col("scale")))
    assert record_entries_of(tuned) == (
        RecordEntry("conv", F(0.75), -128, CONV.scale_w, (0, 0), skip_fusion=True),
        POOL,
    )


def test_empty_record_is_an_empty_table() -> None:
    assert record_frame([]).height == 0
    assert record_entries_of(record_frame([])) == ()


@needs_shared
@pytest.mark.parametrize("name", ["caffe_resnet50_record", "tf_mobilenet_v2_record"])
def test_published_records(name: str) -> None:
    entries = parse_record(gzip.decompress((SHARED / "cases" / "real" / f"{name}.txt.gz").read_bytes()).decode())
    frame = record_frame(entries)
    assert frame.height == sum(1 + len(entry.scale_w) for entry in entries)
    assert record_entries_of(frame) == entries


FRAME = record_frame([CONV, POOL])
BROKEN = {
    "column missing": (FRAME.rename({"scale": "scales"}), "column 'scale' is missing; did you mean 'scales'"),
    "wrong type": (FRAME.with_columns(scale=pl.lit("much")), "a column is of the wrong type"),
    "unknown role": (FRAME.with_columns(role=pl.lit("weights")), "unknown role 'weights'; did you mean 'weight'"),
    "no key": (FRAME.with_columns(key=pl.lit(None)), "a row has no key or no role"),
    "a channel missing": (
        FRAME.filter(pl.col("channel").is_null() | (pl.col("channel") != 0) | (pl.col("key") == "pool")),
        r"'conv', role weight: channels \[1\]; channels 0 to 0, are expected",
    ),
    "data twice": (pl.concat([FRAME, FRAME.head(1)]), "'conv', role data: channels .*one row without a channel"),
    "fields that differ": (
        FRAME.with_columns(act_type=pl.when(pl.col("role") == "data").then(pl.lit("INT8")).otherwise(pl.lit("INT16"))),
        "'conv' has several values of act_type",
    ),
    "scales of some channels": (
        FRAME.with_columns(scale=pl.when(pl.col("channel") == 0).then(None).otherwise(pl.col("scale"))),
        "'conv': some channels have no scale_w",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("frame", "words"), BROKEN.values(), ids=BROKEN)
def test_broken_tables(frame: pl.DataFrame, words: str) -> None:
    with pytest.raises(SchemaError, match=f"^record table: .*{words}"):
        record_entries_of(frame)


def test_rules_hold_on_both_ways() -> None:
    with pytest.raises(ConfigError, match="record of 'conv': scale_d is -1"):
        record_entries_of(FRAME.with_columns(scale=pl.lit(-1.0)))
    with pytest.raises(ConfigError, match="record of 'x': offset_d is 200"):
        record_frame([RecordEntry("x", F(1), 200)])
