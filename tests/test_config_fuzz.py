"""Whatever a text configuration holds, its reader answers with a configuration or with one line of `ConfigError`."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from calibrant.errors import ConfigError
from calibrant.proto.documents import document_kind
from calibrant.proto.optimize_conf import parse_optimize_conf
from calibrant.proto.retrain_config import canonical_retrain_text, parse_retrain_config
from calibrant.proto.simple_config import canonical_text, parse_simple_config

CONFIGS = Path(__file__).parent / "configs"
SECONDS = 3.0  # of each reader; thousands of texts
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(CONFIGS.rglob("*.cfg"))]
PIECES = [
    *"{}[]<>:;,#\"'\\-.\n\t \r\0", "\ufeff", "\u200b", "“", "”", "\uff1a", "\uff5b", "...", "…", "卷", "\x85", "\u2028", "1e999", "nan",
    "-1", "0", "true", "INT16", "INT4", '""', "common_config", "ifmr_quantize", "hfmg_quantize", "nuq_config {", "ada_quantize {}",
    "dmq_balancer: {", "weight_compress_only: true", "asymmetric: true", 'tensor_quantize { layer_name: "a" input_index: 0 }',
    "retrain_data_quant_config {", "ulq_quantize { dst_type: INT4 }", "clip_max_min {", "prune_config {", 'skip_layers: "\n',
    "calibration {", "input_shape: a:1,2", "[a.b/c]", "version: 1", "99999999999999999999", "0x", "1.",
]  # fmt: skip


def mutated(random_: random.Random) -> str:
    text = random_.choice(TEXTS)
    for _ in range(random_.randint(1, 6)):
        at, other = random_.randrange(len(text) + 1), random_.choice(TEXTS)
        width = random_.choice([0, 1, 1, 5, 40])
        cut = random_.randrange(len(other) + 1)
        text = text[:at] + random_.choice([*PIECES, other[cut : cut + 60], ""]) + text[at + width :]
    return text


def read_simple(text: str) -> None:
    config = parse_simple_config(text, "q.cfg")
    assert parse_simple_config(canonical_text(config), dialect=config.dialect) == config
    config.check_types()


def read_retrain(text: str) -> None:
    config = parse_retrain_config(text, "q.cfg")
    assert parse_retrain_config(canonical_retrain_text(config), dialect=config.dialect) == config
    config.check_types()


READERS: dict[str, Callable[[str], object]] = {
    "simple": read_simple,
    "retrain": read_retrain,
    "optimize": lambda text: parse_optimize_conf(text, "q.cfg"),
    "kind": lambda text: document_kind(text, "q.cfg"),
}


@pytest.mark.parametrize("name", READERS)
def test_any_text_gives_a_configuration_or_one_line(name: str) -> None:
    random_, end, count, good = random.Random(2026), time.monotonic() + SECONDS, 0, 0
    while count < 4000 and (count < 50 or time.monotonic() < end):
        text = mutated(random_)
        count += 1
        try:
            READERS[name](text)
            good += 1
        except ConfigError as error:
            message = str(error)
            assert message.startswith("q.cfg:"), (text, message)
            assert len(message.splitlines()) == 1, (text, message)
            assert len(message) < 1000, (text, message)
    assert 0 < good < count or name == "optimize"
