"""ATC's job file drives a run: raw .bin batches and the configuration it names."""

import models
import numpy as np
import pytest

import calibrant
from calibrant.atc import read_atc_job
from calibrant.errors import ConfigError, DataError
from calibrant.ingest.bin_folders import BinFolders, BinInput


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "bins"
    folder.mkdir()
    batches = np.random.default_rng(0).standard_normal((3, 2, 3, 8, 8)).astype(np.float32)
    for index, batch in enumerate(batches):
        batch.tofile(folder / f"{index}.bin")
    (tmp_path / "quant.cfg").write_text("activation_offset: false")
    conf = tmp_path / "job.conf"
    conf.write_text(
        'calibration: {\n  input_data_dir: "bins"\n  input_shape: "x:2,3,8,8"\n  config_file: "quant.cfg"\n  infer_soc: "Ascend310P3"\n}\n'
    )
    return conf, batches


def test_the_job_is_what_its_files_hold(job, tmp_path):
    conf, batches = job
    read = read_atc_job(conf)
    assert read.config == tmp_path / "quant.cfg"
    np.testing.assert_array_equal([feed["x"] for feed in read.data], batches)
    np.testing.assert_array_equal([feed["x"] for feed in read.data], batches)  # a second time as well


def test_a_run_from_the_job_is_a_run_from_its_parts(job, tmp_path):
    conf, batches = job
    model = models.save(models.conv_relu(), tmp_path / "m.onnx")
    read = read_atc_job(conf)
    one = calibrant.run(model, read.data, run=tmp_path / "one", config=read.config)
    two = calibrant.run(model, [{"x": batch} for batch in batches], run=tmp_path / "two", config=read.config)
    assert one.info.samples == 6
    assert one.read("quant_params").equals(two.read("quant_params"))
    assert not one.read("plan")["asymmetric"].any()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('calibration: { input_shape: "x:1,3" }', ConfigError, "no input_data_dir"),
        ('calibration: { input_data_dir: "bins" }', ConfigError, "no input_shape"),
        ('calibration: { input_data_dir: "bins" input_shape: "x:2,3,8,8;y:1" }', ConfigError, "1 folders for 2 inputs"),
        ('calibration: { input_data_dir: "bin" input_shape: "x:2,3,8,8" }', DataError, "bin: no such file or folder"),
    ],
)
def test_what_is_missing_is_named(job, tmp_path, text, error, message):
    conf, _ = job
    conf.write_text(text)
    with pytest.raises(error, match=message):
        read_atc_job(conf)


def test_a_file_of_another_size_is_named(tmp_path):
    np.zeros(5, np.float32).tofile(tmp_path / "a.bin")
    with pytest.raises(
        DataError, match=r"a\.bin: 20 bytes, but a batch of input 'x' of shape \[2, 3\] and type float32 has 24"
    ):
        list(BinFolders([BinInput("x", tmp_path, (2, 3))]))


def test_folders_of_different_counts_are_refused(tmp_path):
    for name, count in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        for index in range(count):
            np.zeros(1, np.float32).tofile(tmp_path / name / f"{index}.bin")
    with pytest.raises(DataError, match=r"different numbers of \.bin files: 'x' 1, 'y' 2"):
        BinFolders([BinInput("x", tmp_path / "a", (1,)), BinInput("y", tmp_path / "b", (1,))])
