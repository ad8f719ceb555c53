"""The zoo: named arrays with the shapes of trouble that calibration data has. Every call gives a fresh, equal array."""

from collections.abc import Callable

import numpy as np

Maker = Callable[[], np.ndarray]

F32 = np.float32
TINY = 1.4012984643e-45  # the least float32 denormal
HALF_MAX = 65504.0  # the greatest float16
FLOAT_MAX = 3.4028234663852886e38


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _normal(seed: int, *shape: int) -> np.ndarray:
    return _rng(seed).standard_normal(shape, dtype=F32)


def _f32(*values: float) -> np.ndarray:
    return np.array(values, F32)


def _half_extremes() -> np.ndarray:
    edge = np.array([HALF_MAX, -HALF_MAX, 6.104e-05, 5.96e-08, -5.96e-08, 0.0, -0.0, 1.0, -1.0, 1024.5], np.float16)
    return np.concatenate([edge, _normal(21, 300).astype(np.float16)])


def _bimodal() -> np.ndarray:
    near, far = _normal(22, 1500) * F32(0.1) - F32(3), _normal(23, 700) * F32(0.4) + F32(5)
    return np.concatenate([near, far])


def _heavy_tail() -> np.ndarray:
    values = _rng(24).standard_cauchy(3000).astype(F32)
    values[::500] *= F32(40)
    return values


def _sprinkled(seed: int, **places: list[int]) -> np.ndarray:
    """Gaussian values with NaN and infinities at the given places."""
    values = _normal(seed, 400)
    values[places.get("nan", [])] = np.nan
    values[places.get("inf", [])] = np.inf
    values[places.get("ninf", [])] = -np.inf
    return values


def _per_channel() -> np.ndarray:
    """Shape (4, 6, 5, 5): channels whose ranges differ by a factor of a million, one of them zero."""
    factors = np.array([1, 1e-3, 30, 0, 1e3, 0.1], F32).reshape(1, 6, 1, 1)
    return _normal(25, 4, 6, 5, 5) * factors + factors * F32(0.25)


FINITE: dict[str, Maker] = {
    "one value": lambda: _f32(0.7),
    "one negative value": lambda: _f32(-3.25),
    "one zero": lambda: _f32(0.0),
    "constant": lambda: np.full(500, 2.5, F32),
    "negative constant": lambda: np.full(333, -0.1, F32),
    "zeros": lambda: np.zeros(257, F32),
    "zeros of both signs": lambda: np.array([0.0, -0.0] * 40, F32),
    "negative": lambda: -np.abs(_normal(1, 1200)) - F32(0.01),
    "positive": lambda: np.abs(_normal(2, 1200)) + F32(0.5),
    "denormals": lambda: np.concatenate([_f32(TINY, -TINY, 1e-40, -3e-39, 1.1754944e-38), _normal(3, 60) * F32(1e-39)]),
    "float16 extremes": _half_extremes,
    "float16 extremes widened": lambda: _half_extremes().astype(F32),
    "float16 gaussian": lambda: _normal(4, 1500).astype(np.float16),
    "float16 maximum both signs": lambda: np.array([HALF_MAX] * 7 + [-HALF_MAX] * 5 + [0.5], np.float16),
    "plus and minus 65504": lambda: _f32(*[HALF_MAX, -HALF_MAX] * 20, 1.0, -1.0),
    "bimodal": _bimodal,
    "integers": lambda: _rng(5).integers(-128, 128, 2000).astype(F32),
    "relu": lambda: np.maximum(_normal(6, 3000), F32(0)),
    "relu6": lambda: np.clip(_normal(7, 3000) * F32(4), F32(0), F32(6)),
    "mostly zeros": lambda: np.where(_rng(8).random(3000) < 0.95, F32(0), _normal(8, 3000)),
    "heavy tail": _heavy_tail,
    "uniform": lambda: _rng(9).uniform(-1, 1, 2500).astype(F32),
    "uniform away from zero": lambda: _rng(10).uniform(3, 4, 2500).astype(F32),
    "gaussian": lambda: _normal(11, 4000),
    "alternating constants": lambda: np.array([1.5, -0.25] * 300, F32),
    "tie of the extremes": lambda: np.concatenate([_f32(1, -1), np.clip(_normal(12, 600), -1, 1)]),
    "powers of two": lambda: np.array([s * 2.0**k for k in range(-20, 21) for s in (1, -1)], F32),
    "neighbours": lambda: np.nextafter(np.full(64, 1, F32), np.array([0, 2] * 32, F32)),
    "micro": lambda: _normal(13, 1500) * F32(1e-6),
    "below the scale floor": lambda: _normal(14, 500) * F32(1e-9),
    "huge": lambda: _normal(15, 500) * F32(1e30),
    "largest floats": lambda: _f32(FLOAT_MAX, -FLOAT_MAX, 1.0, 0.0, 1e-20),
    "per channel": _per_channel,
    "two axes": lambda: _normal(16, 32, 48),
}

NON_FINITE: dict[str, Maker] = {
    "a nan first": lambda: _sprinkled(31, nan=[0]),
    "a nan last": lambda: _sprinkled(32, nan=[-1]),
    "an infinity": lambda: _sprinkled(33, inf=[200]),
    "a negative infinity": lambda: _sprinkled(34, ninf=[399]),
    "all kinds": lambda: _sprinkled(35, nan=[3, 17, 80], inf=[0, 18], ninf=[19, 398]),
    "only nan": lambda: np.full(9, np.nan, F32),
    "only infinities": lambda: np.array([np.inf, -np.inf, np.inf], F32),
    "nan and zeros": lambda: _f32(np.nan, 0, 0, -0.0, np.nan),
    "float16 all kinds": lambda: np.array([np.nan, np.inf, -np.inf, HALF_MAX, -1.0, 0.0] * 5, np.float16),
    "negative nan": lambda: np.array([0xFFC00000, 0xFF800001, 0x3F800000], np.uint32).view(F32),
}

LARGE: dict[str, Maker] = {  # above 2**20 values, so that the dense table counts them
    "large gaussian": lambda: _normal(41, (1 << 20) + 4099),
    "large relu": lambda: np.maximum(_normal(42, (1 << 20) + 31), F32(0)),
    "large integers": lambda: _rng(43).integers(-9, 9, (1 << 20) + 5).astype(F32),
    "large ascending": lambda: np.sort(_normal(44, (1 << 20) + 1)),
    "large half": lambda: _normal(45, (1 << 20) + 9).astype(np.float16),
    "large zeros with a late spike": lambda: np.concatenate([np.zeros((1 << 20) + 2, F32), _f32(1e6, -1e-6)]),
    "large with any pattern": lambda: _rng(46).integers(0, 1 << 32, (1 << 20) + 7, np.uint32).view(F32),
}

ALL: dict[str, Maker] = FINITE | NON_FINITE

WEIGHTS: dict[str, Maker] = {  # output channel on axis 0
    "convolution": lambda: _normal(51, 8, 3, 3, 3) * F32(0.2),
    "depthwise": lambda: _normal(52, 6, 1, 5, 5) * np.geomspace(1e-4, 10, 6).astype(F32).reshape(6, 1, 1, 1),
    "matrix": lambda: _normal(53, 10, 33),
    "dead channels": lambda: _normal(54, 5, 12) * np.array([1, 0, 1e-8, 1e-3, 0], F32).reshape(5, 1),
    "one sign": lambda: np.concatenate([np.abs(_normal(55, 2, 9)), -np.abs(_normal(56, 2, 9))]),
    "ties": lambda: np.tile(_f32(1, -1, 0.5, -0.5), (3, 2)) * _f32(1, 2, 0.3).reshape(3, 1),
    "negative end": lambda: np.array([[-1, 0.999, 0.5], [-0.5, 0.25, 0.4999]], F32),
    "single": lambda: np.full((1, 1), -0.02, F32),
    "half": lambda: _normal(57, 4, 9).astype(np.float16),
}


def dataset(name: str) -> np.ndarray:
    """The array of that name, fresh."""
    return (ALL | LARGE | WEIGHTS)[name]()
