"""Arbitrary records that keep the rules, for hypothesis."""

import numpy as np
from hypothesis import strategies as st

from calibrant.proto.record import RecordEntry

F = np.float32

scales = st.floats(min_value=float(F(1e-45)), max_value=float(F(3e38)), width=32).map(F)
factors = st.floats(min_value=2.0**-23, max_value=2.0**23, width=32).map(F)
shifts = st.lists(st.integers(1, 16), max_size=3) | st.lists(st.just(0), max_size=3)
sizes = st.none() | st.integers(0, 2**32 - 1)


def names(*values: str) -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(values)


@st.composite
def entries_of(draw: st.DrawFn, key: str) -> RecordEntry:
    weights, recurrent, cache = (tuple(draw(st.lists(scales, max_size=3))) for _ in range(3))
    width = draw(names("INT4", "INT8", "INT16"))
    offsets = st.none() | (st.integers(-32768, 32767) if width == "INT16" else st.integers(-128, 127))
    return RecordEntry(
        key,
        draw(st.none() | scales),
        draw(offsets),
        weights,
        draw(st.sampled_from([(0,) * len(weights), ()])),
        width,
        draw(names("INT4", "INT6", "INT7", "INT8")),
        draw(names("FLOAT32", "FLOAT16")),
        is_tensor_quantize=draw(st.booleans()),
        tensor_balance_factor=tuple(draw(st.lists(factors, max_size=3))),
        shift_bit=tuple(draw(shifts)),
        skip_fusion=draw(st.none() | st.booleans()),
        fakequant_precision_mode=draw(names("DEFAULT", "FORCE_FP16_QUANT")),
        dst_type=draw(names("INT4", "INT8")),
        channels=draw(sizes),
        height=draw(sizes),
        width=draw(sizes),
        cluster=draw(st.sampled_from([(), tuple(range(-8, 8)), tuple(range(-128, -96))])),
        scale_h=draw(st.none() | scales),
        offset_h=draw(offsets),
        scale_r=recurrent,
        offset_r=(0,) * len(recurrent),
        kv_scale=cache,
        kv_offset=tuple(draw(st.integers(-(2**31), 2**31 - 1)) for _ in cache),
    )


keys = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, max_size=4)
records = keys.flatmap(lambda found: st.tuples(*[entries_of(key) for key in found]))
