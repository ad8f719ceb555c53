"""Readers: every kind of data gives the same samples, and wrong data is refused by name."""

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.errors import DataError, EmptyDataError
from calibrant.ingest.batches import join
from calibrant.ingest.data import DataSource, fingerprint, open_data
from calibrant.ingest.model import ModelInput
from calibrant.ingest.samples import fingerprint_of_keys, sample_key

F32 = np.dtype("float32")
IMAGE = ModelInput("image", F32, ("N", 3, 4, 5), 0)
STATE = ModelInput("state", F32, (2, "batch", 6), 1)
RATE = ModelInput("rate", np.dtype("int64"), (), None)
TOKENS = ModelInput("tokens", np.dtype("int64"), ("N", "T"), 0)


def images(count: int = 5) -> np.ndarray:
    return np.arange(count * 60, dtype=np.float32).reshape(count, 3, 4, 5)


def save_npz(path: Path, *, compressed: bool = False, **arrays: np.ndarray) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


class Reader:
    """An onnxruntime-style reader."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.feeds = feeds
        self.left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


class RewindableReader(Reader):
    def rewind(self) -> None:
        self.left = iter(self.feeds)


def same_samples(source: DataSource, expected: np.ndarray) -> None:
    values = [sample.values["image"] for sample in source]
    assert all(v.shape == (1, 3, 4, 5) and v.dtype == np.float32 for v in values)
    np.testing.assert_array_equal(np.concatenate(values), expected)


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_streams_samples_with_a_batch_axis(tmp_path: Path, compressed: bool) -> None:
    source = open_data(save_npz(tmp_path / "x.npz", compressed=compressed, image=images()), [IMAGE])
    assert source.count == 5
    same_samples(source, images())
    same_samples(source, images())  # a second iteration starts anew
    assert [s.place for s in source] == [f"x.npz[{i}]" for i in range(5)]


def test_npz_takes_a_path_as_text(tmp_path: Path) -> None:
    assert open_data(str(save_npz(tmp_path / "x.npz", image=images(2))), [IMAGE]).count == 2


def test_npz_reads_only_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrant.ingest.samples.BLOCK_BYTES", 5 * 60 * 4)
    path = save_npz(tmp_path / "x.npz", image=images(100))
    sizes: list[int] = []
    read = zipfile.ZipExtFile.read

    def spy(self: zipfile.ZipExtFile, n: int | None = -1) -> bytes:
        sizes.append(-1 if n is None else n)
        return read(self, n)

    source = open_data(path, [IMAGE])
    monkeypatch.setattr(zipfile.ZipExtFile, "read", spy)
    samples = iter(source)
    for _ in range(5):
        next(samples)
    block = 4 * 60 * 4  # four samples: the greatest power of two that the limit allows
    assert sizes.count(block) == 2
    assert all(0 <= size <= block for size in sizes)


def test_npz_joins_samples_of_equal_rank_along_the_batch_axis(tmp_path: Path) -> None:
    state = np.arange(4 * 2 * 6, dtype=np.float32).reshape(4, 2, 1, 6)
    flat = save_npz(tmp_path / "a.npz", state=state[:, :, 0])
    full = save_npz(tmp_path / "b.npz", state=state)
    for path in (flat, full):
        values = [s.values["state"] for s in open_data(path, [STATE])]
        assert all(v.shape == (2, 1, 6) for v in values)
        np.testing.assert_array_equal(np.stack(values), state)
    assert fingerprint(open_data(flat, [STATE])) == fingerprint(open_data(full, [STATE]))


def test_npz_scalar_inputs_have_one_value_a_sample(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "x.npz", image=images(3), rate=np.array([8, 8, 16], np.int64))
    rates = [s.values["rate"] for s in open_data(path, [IMAGE, RATE])]
    assert [r.shape for r in rates] == [()] * 3
    assert [int(r) for r in rates] == [8, 8, 16]


def test_folder_of_one_input(tmp_path: Path) -> None:
    x = images(3)
    for name, array in (("c", x[2]), ("a", x[:1]), ("b", np.asfortranarray(x[1]))):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / ".hidden").touch()
    source = open_data(tmp_path, [IMAGE])
    assert source.count == 3
    same_samples(source, x)
    assert [s.source for s in source] == ["a.npy", "b.npy", "c.npy"]


def test_folder_of_several_inputs_matches_equal_names(tmp_path: Path) -> None:
    for i in range(2):
        for name, array in (("image", images(2)[i]), ("rate", np.array(i, np.int64))):
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(tmp_path / name / f"{i}.npy", array)
    samples = list(open_data(tmp_path, [IMAGE, RATE]))
    assert [int(s.values["rate"]) for s in samples] == [0, 1]
    np.testing.assert_array_equal(samples[1].values["image"], images(2)[1:])


def test_folder_names_stand_for_names_that_no_file_may_have(tmp_path: Path) -> None:
    spec = ModelInput("serving/x:0", F32, ("N", 2), 0)
    (tmp_path / "serving_x_0").mkdir()
    np.save(tmp_path / "serving_x_0" / "a.npy", np.zeros(2, np.float32))
    assert len(list(open_data(tmp_path, [spec]))) == 1


def test_folder_samples_may_differ_in_shape(tmp_path: Path) -> None:
    for length in (5, 7):
        np.save(tmp_path / f"{length}.npy", np.zeros(length, np.int64))
    assert [s.values["tokens"].shape for s in open_data(tmp_path, [TOKENS])] == [(1, 5), (1, 7)]


def test_feeds_are_split_along_the_batch_axis() -> None:
    x = images(5)
    state = np.arange(60, dtype=np.float32).reshape(2, 5, 6)
    feeds = [{"image": x[:3], "state": state[:, :3]}, {"image": x[3:], "state": state[:, 3:]}]
    samples = list(open_data(feeds, [IMAGE, STATE]))
    assert [s.place for s in samples] == ["feed 0[0]", "feed 0[1]", "feed 0[2]", "feed 1[0]", "feed 1[1]"]
    np.testing.assert_array_equal(np.concatenate([s.values["state"] for s in samples], axis=1), state)


def test_feeds_may_reuse_one_array() -> None:
    buffer = np.zeros((1, 3, 4, 5), np.float32)

    def feeds() -> Iterator[dict[str, np.ndarray]]:
        for i in range(3):
            buffer[:] = i
            yield {"image": buffer}

    assert [s.values["image"].max() for s in list(open_data(feeds(), [IMAGE]))] == [0, 1, 2]


def test_reader_with_get_next() -> None:
    feeds = [{"image": images(2)}, {"image": images(3)[2:]}]
    source = open_data(Reader(feeds), [IMAGE])
    same_samples(source, images(3))
    with pytest.raises(DataError, match=r"already read to its end and has no rewind\(\)"):
        list(source)


def test_reader_with_rewind_is_read_again() -> None:
    source = open_data(RewindableReader([{"image": images(3)}]), [IMAGE])
    same_samples(source, images(3))
    same_samples(source, images(3))


def test_generator_is_read_once() -> None:
    source = open_data(({"image": images(2)} for _ in range(1)), [IMAGE])
    same_samples(source, images(2))
    with pytest.raises(DataError, match="iterator of feeds was already read"):
        list(source)


def test_every_kind_gives_the_same_keys(tmp_path: Path) -> None:
    x = images(3)
    (tmp_path / "folder").mkdir()
    for i in range(3):
        np.save(tmp_path / "folder" / f"{i}.npy", x[i])
    kinds: list[Any] = [
        save_npz(tmp_path / "x.npz", image=x),
        tmp_path / "folder",
        [{"image": x}],
        Reader([{"image": x}]),
    ]
    keys = [[s.key for s in open_data(kind, [IMAGE])] for kind in kinds]
    assert keys == [keys[0]] * 4
    assert len(set(keys[0])) == 3


def test_key_depends_on_names_dtypes_shapes_and_bytes() -> None:
    base = np.arange(6, dtype=np.float32)
    variants = [
        {"x": base}, {"y": base}, {"x": base.astype(np.float64)}, {"x": base.reshape(2, 3)}, {"x": base + 1},
        {"x": base.view(np.int32)}, {"x": base, "y": base}, {"x": -base * 0},
    ]  # fmt: skip
    assert len({sample_key(v) for v in variants}) == len(variants)


def test_key_is_the_sha256_of_what_the_documentation_says() -> None:
    x, y = np.float32([[1, 2]]), np.int64([7])
    content = b"x\0<f4\0(1, 2)\0" + bytes.fromhex("0000803f 00000040") + b"y\0<i8\0(1,)\0" + b"\7" + bytes(7)
    assert sample_key({"y": y, "x": x}) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("layout", ["Fortran order", "every second", "read-only", "backwards"])
def test_key_is_of_the_values_however_they_lie(layout: str) -> None:
    x = images(2)
    spread = np.zeros((2, 3, 4, 10), np.float32)
    spread[..., ::2] = x
    frozen = np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)
    same = {"Fortran order": np.asfortranarray(x), "every second": spread[..., ::2], "read-only": frozen,
            "backwards": np.ascontiguousarray(x[..., ::-1])[..., ::-1]}  # fmt: skip
    assert sample_key({"x": same[layout]}) == sample_key({"x": x})


def test_key_tells_byte_orders_apart() -> None:
    x = images(1)
    assert sample_key({"x": x}) != sample_key({"x": x.astype(">f4")})


def test_samples_of_a_file_or_feed_are_joined_without_a_copy(tmp_path: Path) -> None:
    for data in (save_npz(tmp_path / "x.npz", image=images(5)), [{"image": images(5)}]):
        samples = list(open_data(data, [IMAGE]))
        joined = join(samples[1:4], [IMAGE])["image"]
        assert np.shares_memory(joined, samples[2].values["image"])
        np.testing.assert_array_equal(joined, images(5)[1:4])


def test_samples_that_do_not_lie_in_order_are_joined_by_a_copy(tmp_path: Path) -> None:
    a, b, c = open_data(save_npz(tmp_path / "x.npz", image=images(3)), [IMAGE])
    other = list(open_data([{"image": images(3)}], [IMAGE]))[2]
    for samples, order in (((a, c), [0, 2]), ((b, a), [1, 0]), ((a, a), [0, 0]), ((b, other), [1, 2])):
        np.testing.assert_array_equal(join(samples, [IMAGE])["image"], images(3)[order])


def test_samples_whose_batch_axis_is_not_the_first_are_joined_by_a_copy() -> None:
    state = np.arange(60, dtype=np.float32).reshape(2, 5, 6)
    samples = list(open_data([{"state": state}], [STATE]))
    np.testing.assert_array_equal(join(samples[1:3], [STATE])["state"], state[:, 1:3])


def test_several_inputs_of_unequal_size_are_read_in_blocks_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.ingest.samples.BLOCK_BYTES", 2 * 60 * 4)
    tokens = np.arange(7 * 3, dtype=np.int64).reshape(7, 3)
    path = save_npz(tmp_path / "x.npz", compressed=True, image=images(7), tokens=tokens)
    for data in (path, [{"image": images(7), "tokens": tokens}]):
        samples = list(open_data(data, [IMAGE, TOKENS]))
        np.testing.assert_array_equal(np.concatenate([s.values["image"] for s in samples]), images(7))
        np.testing.assert_array_equal(np.concatenate([s.values["tokens"] for s in samples]), tokens)


def test_half_precision_samples_keep_their_bits(tmp_path: Path) -> None:
    spec = ModelInput("half", np.dtype("float16"), ("N", 3), 0)
    x = np.array([[1, 2.5, -0.0], [6e-8, 65504, 3]], np.float16)
    samples = list(open_data(save_npz(tmp_path / "x.npz", half=x), [spec]))
    assert [s.values["half"].tobytes() for s in samples] == [row.tobytes() for row in x]
    assert join(samples, [spec])["half"].tobytes() == x.tobytes()


def test_fingerprint_counts_equal_samples_and_ignores_order() -> None:
    assert fingerprint_of_keys(["a", "b", "a"]) == fingerprint_of_keys(["a", "a", "b"])
    assert fingerprint_of_keys(["a", "a", "b"]) != fingerprint_of_keys(["a", "b"])


def test_fingerprint_of_the_first_samples() -> None:
    feeds = [{"image": images(4)}]
    keys = [s.key for s in open_data(feeds, [IMAGE])]
    assert fingerprint(open_data(feeds, [IMAGE]), 2) == fingerprint_of_keys(keys[:2])
    assert fingerprint(open_data(feeds, [IMAGE])) == fingerprint_of_keys(keys)


# --- wrong data ---------------------------------------------------------------------------------------------------


def refused(data: Any, inputs: list[ModelInput], message: str, error: type[Exception] = DataError) -> None:
    with pytest.raises(error, match=message) as caught:
        list(open_data(data, inputs))
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "no.npz", [IMAGE], r"no\.npz: no such file or folder")


def test_unsupported_suffix_says_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "x.csv").touch()
    refused(tmp_path / "x.csv", [IMAGE], r"'\.csv' is not supported; expected an \.npz file, a folder of \.npy files")
    np.save(tmp_path / "x.npy", images())
    refused(tmp_path / "x.npy", [IMAGE], r"put \.npy files into a folder")


@pytest.mark.parametrize("kind", [3, None, {"image": images()}])
def test_unsupported_objects(kind: Any) -> None:
    refused(kind, [IMAGE], "put it into a list" if isinstance(kind, dict) else "is not supported; expected")


def test_broken_zip(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"no zip")
    refused(tmp_path / "x.npz", [IMAGE], r"x\.npz: cannot be read as \.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_zip_member(tmp_path: Path, compressed: bool) -> None:
    noise = np.random.default_rng(0).normal(size=(20, 3, 4, 5)).astype(np.float32)
    path = save_npz(tmp_path / "x.npz", compressed=compressed, image=noise)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    refused(path, [IMAGE], r"x\.npz: cannot be read as \.npz")


def test_cut_array(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", images(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("image.npy", (tmp_path / "whole.npy").read_bytes()[:-100])
    refused(
        tmp_path / "x.npz", [IMAGE], r"sample 2 \(x\.npz\[2\]\): the file ends inside this sample \(140 of 240 bytes\)"
    )


def test_members_that_are_no_arrays(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "x")
    refused(tmp_path / "a.npz", [IMAGE], r"member 'readme\.txt' is no array")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("image.npy", "x")
    refused(tmp_path / "b.npz", [IMAGE], "array 'image': no numpy array")


def test_fortran_order_and_objects(tmp_path: Path) -> None:
    refused(
        save_npz(tmp_path / "f.npz", image=np.asfortranarray(images())), [IMAGE], "'image': is stored in Fortran order"
    )
    ragged = np.empty(2, object)
    refused(save_npz(tmp_path / "o.npz", image=ragged), [IMAGE], "'image': holds Python objects")


def test_unequal_counts(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "x.npz", image=images(3), rate=np.zeros(2, np.int64))
    refused(path, [IMAGE, RATE], "different numbers of samples on their first axis: 'image' 3, 'rate' 2")


def test_scalar_array_without_a_sample_axis(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "x.npz", image=images(3), rate=np.array(8, np.int64))
    refused(path, [IMAGE, RATE], "array 'rate' has no first axis to count samples")


def test_unknown_missing_and_extra_names(tmp_path: Path) -> None:
    refused(
        save_npz(tmp_path / "a.npz", imgae=images()), [IMAGE], "'imgae' is no input of the model.*did you mean 'image'"
    )
    refused(
        save_npz(tmp_path / "b.npz", image=images(), y=images()),
        [IMAGE],
        "'y' is no input of the model; its inputs are 'image'",
    )
    refused(save_npz(tmp_path / "c.npz", image=images()), [IMAGE, RATE], "no values for input 'rate'")
    refused([{"image": images(), "labels": images()}], [IMAGE], r"sample 0 \(feed 0\[0\]\): 'labels' is no input")
    (tmp_path / "image").mkdir()
    (tmp_path / "labels").mkdir()
    for path in ("a.npz", "b.npz", "c.npz"):
        (tmp_path / path).unlink()
    refused(tmp_path, [IMAGE], "'labels' is no input")


def test_nothing_is_cast(tmp_path: Path) -> None:
    refused(
        save_npz(tmp_path / "a.npz", image=images().astype(np.float64)),
        [IMAGE],
        r"'image' is float64, expected float32.*astype",
    )
    refused(save_npz(tmp_path / "b.npz", image=images().astype(">f4")), [IMAGE], "float32 of foreign byte order")
    refused(
        [{"tokens": np.zeros((1, 4), np.int32)}],
        [TOKENS],
        r"sample 0 \(feed 0\[0\]\): input 'tokens' is int32, expected int64",
    )
    refused([{"image": [[1.0]]}], [IMAGE], "'image' is a list, expected a numpy array")


def test_wrong_rank_and_size(tmp_path: Path) -> None:
    refused(
        save_npz(tmp_path / "a.npz", image=images()[:, 0]),
        [IMAGE],
        r"sample 0 \(a\.npz\[0\]\).*\[4, 5\] of rank 2, expected \[N, 3, 4, 5\]",
    )
    refused(save_npz(tmp_path / "b.npz", image=images()[:, :2]), [IMAGE], "axis 1 has 2 entries instead of 3")
    refused([{"image": images()[0]}], [IMAGE], "rank 3, expected")
    state = np.zeros((3, 2, 4, 6), np.float32)
    refused(save_npz(tmp_path / "c.npz", state=state), [STATE], "one sample has one entry on the batch axis 1, not 4")


def test_wrong_sample_in_the_middle_is_named(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", images()[i] if i != 1 else images()[i, :, :2])
    refused(tmp_path, [IMAGE], r"sample 1 \(1\.npy\): input 'image' has shape \[1, 3, 2, 5\]")
    feeds = [{"image": images(2)}, {"image": images(1).astype(np.float16)}]
    refused(feeds, [IMAGE], r"sample 2 \(feed 1\[0\]\): input 'image' is float16")


def test_feed_with_unequal_numbers_of_samples() -> None:
    feed = {"image": images(2), "state": np.zeros((2, 3, 6), np.float32)}
    refused([feed], [IMAGE, STATE], "different numbers of samples on their batch axes: 'image' 2, 'state' 3")


def test_feed_that_is_no_dict() -> None:
    refused([images()], [IMAGE], "is a ndarray, expected a dict")


def test_folder_with_other_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", images()[0])
    (tmp_path / "b.jpg").touch()
    refused(tmp_path, [IMAGE], r"'b\.jpg' is no \.npy file")


def test_folder_with_unmatched_names(tmp_path: Path) -> None:
    for name in ("image", "rate"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "image" / "a1.npy", images()[0])
    np.save(tmp_path / "rate" / "a2.npy", np.array(1, np.int64))
    refused(tmp_path, [IMAGE, RATE], r"image/a1\.npy: input 'rate' has no file of this name.*did you mean 'a2\.npy'")


def test_folder_with_files_that_are_no_arrays(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"x")
    refused(tmp_path, [IMAGE], r"sample 0 \(a\.npy\): .*no numpy array")
    np.save(tmp_path / "a.npy", np.array([None, 1]))
    refused(tmp_path, [IMAGE], "holds Python objects")
    np.save(tmp_path / "a.npy", images(1))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-9])
    refused(tmp_path, [IMAGE], r"sample 0 \(a\.npy\): .*a\.npy cannot be read as \.npy.*numpy\.save")


def test_folder_is_checked_before_the_first_sample_is_read(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", images()[i] if i != 2 else images()[i].astype(np.float16))
    with pytest.raises(DataError, match=r"sample 2 \(2\.npy\): input 'image' is float16"):
        open_data(tmp_path, [IMAGE])


def test_empty_data(tmp_path: Path) -> None:
    refused([], [IMAGE], "no samples", EmptyDataError)
    refused(save_npz(tmp_path / "x.npz", image=images(0)), [IMAGE], r"x\.npz: no samples", EmptyDataError)
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", [IMAGE], r"no \.npy files", EmptyDataError)


def test_feed_without_samples() -> None:
    refused(
        [{"image": images(1)}, {"image": images(0)}],
        [IMAGE],
        r"sample 1 \(feed 1\[0\]\): holds no samples",
        EmptyDataError,
    )


def test_feed_with_a_name_that_is_no_text() -> None:
    refused([{1: images(1)}], [IMAGE], "'1' is no input of the model")


def test_masked_array() -> None:
    masked = np.ma.masked_array(images(1), images(1) > 3)
    refused(
        [{"image": masked}],
        [IMAGE],
        r"input 'image' is a masked array, whose mask nothing heeds; fill it with \.filled\(\)",
    )


def test_header_that_no_parser_takes(tmp_path: Path) -> None:
    header = b"((((" + b" " * 49 + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("image.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    refused(tmp_path / "x.npz", [IMAGE], "array 'image': no numpy array")
