"""Charts of block characters: every value shows, nothing leaves its room."""

from math import inf, nan

import pytest

from calibrant.layer_views.bars import noise_shares
from calibrant.text_charts import bar, columns, sparkline


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.0, "████████"),
        (2.0, "████████"),
        (0.5, "████"),
        (0.25 + 1 / 64, "██▏"),
        (1e-9, "▏"),
        (0, ""),
        (-1, ""),
        (nan, ""),
    ],
)
def test_a_bar_is_as_long_as_its_share(share, expected):
    assert bar(share, 8) == expected


def test_a_sparkline_has_one_level_a_value():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([nan, inf, 1.0, -1.0]) == "  █▁"
    assert sparkline([nan, nan]) == "  "
    assert sparkline([]) == ""


def test_columns_stand_on_the_last_line():
    assert columns([1.0, 0.5, 0.125, 1e-9, 0.0], 2) == ["█    ", "██▂▁ "]
    assert columns([], 2) == ["", ""]


def test_shares_of_noise_are_of_powers():
    shares = noise_shares([10.0, 20.0, inf, nan])  # noises 0.1 and 0.01
    assert shares == pytest.approx([10 / 11, 1 / 11, 0, 0])
    assert noise_shares([inf, inf]) == [0.0, 0.0]
    assert noise_shares([-inf, 3.0]) == [0.0, 0.0]  # nothing to share where one is infinite
