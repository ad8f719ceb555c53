"""Oddities of copied texts: what is mended, that lines and columns stay, and that other texts are left alone."""

# ruff: noqa: RUF001 (odd characters are what this is about)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.errors import ConfigError
from calibrant.proto._tidy import MAX_BROKEN_LINES, tidy

MENDED = {
    'a : "\nb\n" c': None,  # what follows on the line shows that a quotation mark is missing
    'a : "\nb\n"': 'a : "b"\n\n ',
    'a : "\n  b\n" # c': 'a : "b"\n\n  # c',
    'a : "b\nc"': 'a : "bc"\n  ',
    'a : ["\r\nb\r\n", "c"]': 'a : ["b"\n\n , "c"]',
    "a : '\nb\n'": "a : 'b'\n\n ",
    "a : “\nb\n”": 'a : "b"\n\n ',
    "a : “b”": 'a : "b"',
    "a : ‘b’": "a : 'b'",
    "a : ”b”": 'a : "b"',
    "a : ＂b＂": 'a : "b"',
    'a : "b”': 'a : "b"',
    'a : “b"': 'a : "b"',
    "a： 2": "a: 2",
    "a ｛ ｝": "a { }",
    "＃ 2": "# 2",
    "＃ it’s “2": "# it’s “2",
    "a : －１": "a : -1",
    "a : 1\u200b": "a : 1 ",
    'a : "b“c”"': None,
    "# “b”： ...": None,
    'a : "b\nc : "d"': None,
    'a : "b\nc { x: "d"': None,
    'a : "b': None,
    'a : "b\\\nc"': None,
    "a : 0.5": None,
    "a : ..": None,
}


@pytest.mark.parametrize(("text", "expected"), MENDED.items(), ids=repr)
def test_text_is_mended_or_left_alone(text: str, expected: str | None) -> None:
    tidied = tidy(text, "q.cfg")
    assert tidied.text == (text if expected is None else expected)
    assert bool(tidied.warnings) == (expected is not None)


def test_warning_of_each_oddity_has_its_place() -> None:
    tidied = tidy('a : “b”\n c ： "\n\td\n"\ne : 1', "q.cfg")
    assert [place for place, _ in tidied.warnings] == [(1, 5), (2, 4), (2, 6)]
    assert tidied.text.split("\n")[4] == "e : 1"


def test_long_gap_is_a_forgotten_quotation_mark() -> None:
    near, far = (f'a : "{chr(10) * lines}b"' for lines in (MAX_BROKEN_LINES - 1, MAX_BROKEN_LINES + 1))
    assert tidy(near, "q.cfg").warnings
    assert not tidy(far, "q.cfg").warnings


@pytest.mark.parametrize("text", ["...", "a { ... }", "a : 1\n  …", "……", "a : [1, ......]"])
def test_dots_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^q\.cfg:[12]:\d+: '\.\.\.' stands for lines that were left out"):
        tidy(text, "q.cfg")


odd_texts = st.text(
    st.sampled_from([*"ab:{}[]\"'\\#\n\t ,", "“", "”", "‘", "’", "：", "｛", "＂", "１", "\u200b", "卷"]), max_size=60
)


@given(odd_texts)
def test_lines_stay_and_a_mended_text_needs_no_mending(text: str) -> None:
    tidied = tidy(text, "q.cfg")
    assert tidied.text.count("\n") == text.count("\n")
    assert bool(tidied.warnings) == (tidied.text != text)
    assert [place for place, _ in tidied.warnings] == sorted(place for place, _ in tidied.warnings)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)).filter(lambda text: "..." not in text))
def test_plain_lines_are_left_alone(text: str) -> None:
    assert tidy(text, "q.cfg").text == text


@pytest.mark.parametrize("text", ["'\\" * 100_000, "“\\" * 100_000, '"a\n' * 100_000, "“" + "a" * 1_000_000])
def test_mending_ends_at_a_quotation_mark_without_partner(text: str) -> None:
    tidied = tidy(text, "q.cfg")  # quadratic work would not come to an end
    assert tidied.text.count("\n") == text.count("\n")
