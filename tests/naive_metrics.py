"""Plain Python twins of the metrics and of the bootstrap, from their definitions in docs/evaluation.md; nothing of calibrant is used."""

import itertools
import math
import random


def flat(array):
    return [float(value) for value in array.ravel()]


def argmax(values):
    best = 0
    for index, value in enumerate(values):
        if value > values[best]:
            best = index
    return best


def top(outputs, labels, first):
    """Share of samples whose label is among the `first` entries, when sorted by value and then by index."""
    hits = 0
    for output, label in zip(outputs, labels, strict=True):
        values = flat(output)
        order = sorted(range(len(values)), key=lambda index: (-values[index], index))
        hits += label in order[:first]
    return hits / len(labels)


def agreement(references, outputs):
    pairs = list(zip(references, outputs, strict=True))
    return sum(argmax(flat(x)) == argmax(flat(y)) for x, y in pairs) / len(pairs)


def sqnr_db(references, outputs):
    signal = sum(x * x for reference in references for x in flat(reference))
    noise = 0.0
    for reference, output in zip(references, outputs, strict=True):
        noise += sum((x - y) ** 2 for x, y in zip(flat(reference), flat(output), strict=True))
    return 10 * math.log10(signal / noise)


def cosine(reference, output):
    x, y = flat(reference), flat(output)
    return sum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


def softmax(values):
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def mse(reference, output):
    x, y = flat(reference), flat(output)
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / len(x)


def max_abs(references, outputs):
    return max(
        abs(a - b) for x, y in zip(references, outputs, strict=True) for a, b in zip(flat(x), flat(y), strict=True)
    )


def mean(values):
    return sum(values) / len(values)


def all_resamples(values):
    """The means of every possible resample, sorted: N^N of them."""
    return sorted(mean(draw) for draw in itertools.product(values, repeat=len(values)))


def bootstrap(values, statistic, *, level=0.95, resamples=2000, seed=1):
    """The percentile bootstrap with Python's own generator."""
    draw = random.Random(seed)
    found = sorted(statistic([draw.choice(values) for _ in values]) for _ in range(resamples))
    tail = (1 - level) / 2
    return found[int(tail * (resamples - 1))], found[math.ceil((1 - tail) * (resamples - 1))]
