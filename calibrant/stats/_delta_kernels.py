"""Whole numbers as Parquet's DELTA_BINARY_PACKED: what each adds to the one before, in as many bits as a few of them need.

Source of the layout: Encodings.md of the Parquet format specification.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.stats._jit import kernel

Number = Any
Numbers = npt.NDArray[np.int64]
Differences = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

BLOCK = 128  # differences above one least difference
PARTS = 4  # of a block, each with a number of bits of its own
PART = BLOCK // PARTS
WORD = np.uint64(64)


@kernel
def put_varint(value: Number, out: npt.NDArray[np.uint8], at: Number) -> Number:
    """Write an unsigned number, seven bits a byte, the lowest first; return where it ends."""
    while value >= np.uint64(128):
        out[at] = np.uint8((value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@kernel
def zigzag(value: Number) -> Number:
    """Return a signed number as an unsigned one that is small where its magnitude is."""
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))


@kernel
def _width(differences: Differences) -> Number:
    """Return how many bits the greatest needs."""
    bits = np.uint64(0)
    for i in range(PART):
        bits |= differences[i]
    width = np.uint64(0)
    while bits:
        bits >>= np.uint64(1)
        width += np.uint64(1)
    return width


@kernel
def _pack_narrow(differences: Differences, width: Number, words: Differences) -> None:
    """Pack a part of at most 16 bits each: four are put together before they wait for those before them."""
    four, whole, word = np.uint64(4) * width, np.uint64(0), 0
    fill = np.uint64(0)
    for i in range(0, PART, 4):
        low = differences[i] | differences[i + 1] << width
        high = differences[i + 2] | differences[i + 3] << width
        value = low | high << (width + width)
        whole |= value << fill
        fill += four
        if fill >= WORD:
            words[word] = whole
            word += 1
            fill -= WORD
            whole = value >> (four - fill) if fill else np.uint64(0)
    words[word] = whole


@kernel
def _pack_wide(differences: Differences, width: Number, words: Differences) -> None:
    """Pack a part of any width."""
    whole, word = np.uint64(0), 0
    fill = np.uint64(0)
    for i in range(PART):
        value = differences[i]
        whole |= value << fill
        fill += width
        if fill >= WORD:
            words[word] = whole
            word += 1
            fill -= WORD
            whole = value >> (width - fill) if fill else np.uint64(0)
    words[word] = whole


@kernel
def _put_part(differences: Differences, width: Number, words: Differences, out: Bytes, at: Number) -> Number:
    """Write a part in that many bits each, the lowest first."""
    if width <= np.uint64(16):
        _pack_narrow(differences, width, words)
    else:
        _pack_wide(differences, width, words)
    size = np.int64(width) * (PART // 8)
    target, stored = out[at : at + size], words.view(np.uint8)
    for i in range(size):  # assigning the slice would compile a second longer
        target[i] = stored[i]
    return at + size


@kernel
def _differ(values: Numbers, differences: Differences) -> Number:
    """Note what each adds to the one before, less the least of these; return that."""
    before, behind = values[:-1], values[1:]
    least = behind[0] - before[0]
    for i in range(behind.size):
        least = min(least, behind[i] - before[i])
    for i in range(behind.size):
        differences[i] = np.uint64(behind[i] - before[i] - least)
    for i in range(behind.size, BLOCK):
        differences[i] = np.uint64(0)
    return least


@kernel
def pack_differences(values: Numbers, out: Bytes, at: Number) -> Number:
    """Write the blocks of an array, without the header that its page begins with; return where they end.

    Args:
        values: at least one; the first is in the header.
        out: room for 16 bytes a block, and 8 a value of whole blocks.
        at: where they begin.
    """
    differences, words = np.empty(BLOCK, np.uint64), np.empty(PART + 1, np.uint64)
    for start in range(0, values.size - 1, BLOCK):
        least = _differ(values[start : start + BLOCK + 1], differences)
        at = put_varint(zigzag(least), out, at)
        widths = at
        at += PARTS
        for part in range(PARTS):
            some = differences[part * PART : (part + 1) * PART]
            width = _width(some)
            out[widths + part] = np.uint8(width)
            if width:
                at = _put_part(some, width, words, out, at)
    return at
