"""Metrics of a text recogniser with a CTC output, such as PP-OCR's: how many whole lines are read exactly as before, or exactly right.

calibrant evaluate rec.run --data lines.npz --metric examples/ctc_lines.py:exact_lines
CTC_MODEL=rec.onnx calibrant evaluate rec.run --data lines.npz --labels text.npy --metric examples/ctc_lines.py:labelled_lines

The outputs are scores of shape (lines, steps, characters), whose character 0 is the blank.
"""

import os

import numpy as np
import onnx

BLANK = 0


def decode(scores: np.ndarray) -> list[int]:
    """Greedy CTC of one line, shape (steps, characters): the best character of each step, repetitions once, blanks dropped."""
    best = scores.argmax(axis=-1)
    changed = np.concatenate(([True], best[1:] != best[:-1]))
    return [int(one) for one in best[changed] if one != BLANK]


def lines(outputs: dict) -> list[list[int]]:
    """Decode the first output; it is an array, or a list of (1, steps, characters) where lines have different widths."""
    scores = next(iter(outputs.values()))
    return [decode(np.asarray(line).reshape(-1, np.shape(line)[-1])) for line in scores]


def exact_lines(outputs: dict, reference: dict, labels: object) -> np.ndarray:
    """Whether each line reads as the float model reads it."""
    return np.array([read == expected for read, expected in zip(lines(outputs), lines(reference), strict=True)])


def labelled_lines(outputs: dict, reference: dict, labels: np.ndarray) -> np.ndarray:
    """Whether each line reads as its label says, spaces apart; the characters stand in the model's metadata."""
    properties = {entry.key: entry.value for entry in onnx.load(os.environ["CTC_MODEL"]).metadata_props}
    characters = ["", *properties["character"].split("\n"), " "]
    texts = ["".join(characters[one] for one in line) for line in lines(outputs)]
    return np.array(
        [text.replace(" ", "") == str(label).replace(" ", "") for text, label in zip(texts, labels, strict=True)]
    )
