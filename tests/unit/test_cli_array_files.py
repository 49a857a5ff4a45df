"""Arrays read from and written to files by the command line."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from PIL import Image

from opdispatch_client.cli.array_files import (
    check_output,
    read_array,
    read_arrays,
    to_pixels,
    write_arrays,
)
from opdispatch_client.cli.exit_codes import CommandError, UsageError


def test_npy_and_npz_read_back(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_arrays(tmp_path / "a.npy", {"out0": array})
    np.testing.assert_array_equal(read_array(str(tmp_path / "a.npy")), array)
    # np.savez could not take the name "file".
    write_arrays(tmp_path / "b.npz", {"file": array, "q": array + 1})
    assert list(read_arrays(str(tmp_path / "b.npz"))) == ["file", "q"]
    np.testing.assert_array_equal(read_array(f"{tmp_path}/b.npz:q"), array + 1)


def test_an_archive_of_several_arrays_asks_which(tmp_path):
    np.savez(tmp_path / "b.npz", x=np.zeros(1), y=np.zeros(1))
    with pytest.raises(UsageError, match=r"has 2 arrays: x, y; choose one with @.*b\.npz:x"):
        read_array(str(tmp_path / "b.npz"))
    with pytest.raises(UsageError, match="no array 'z'; it has x, y"):
        read_array(f"{tmp_path}/b.npz:z")


@pytest.mark.parametrize(
    ("mode", "size", "shape", "dtype"),
    [
        ("L", (5, 3), (3, 5), np.uint8),
        ("RGB", (5, 3), (3, 5, 3), np.uint8),
        ("RGBA", (5, 3), (3, 5, 4), np.uint8),
        ("P", (5, 3), (3, 5, 3), np.uint8),
        ("1", (5, 3), (3, 5), np.bool_),
    ],
)
def test_pictures_become_arrays(tmp_path, mode, size, shape, dtype):
    Image.new(mode, size).save(tmp_path / "picture.png")
    array = read_array(str(tmp_path / "picture.png"))
    assert (array.shape, array.dtype) == (shape, dtype)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an array", b"\x93NUMPY\x01\x00", b"PK\x03\x04broken"],
)
@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.png", "a"])
def test_broken_files_are_wrong_usage(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=name):
        read_array(str(path))


def test_npy_and_npz_are_not_mixed_up(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(1))
    with pytest.raises(UsageError, match=r"single array; name such a file \.npy"):
        read_array(str(tmp_path / "a.npz"))
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, x=np.zeros(1))
    with pytest.raises(UsageError, match=r"not a single array; name an archive \.npz"):
        read_array(str(tmp_path / "a.npy"))


@pytest.mark.parametrize("kept", ["coo", "csr", "csc", "dia"])
def test_sparse_arrays_are_read_as_such(tmp_path, kept):
    array = scipy.sparse.coo_array(np.diag([1.0, 0.0, 3.0])).asformat(kept)
    scipy.sparse.save_npz(tmp_path / "a.npz", array)
    read = read_array(str(tmp_path / "a.npz"))
    assert read.format == ("coo" if kept == "coo" else "csr")
    np.testing.assert_array_equal(read.toarray(), array.toarray())


@pytest.mark.parametrize("kept", [b"csr", b"coo", b"dia"])
def test_broken_sparse_arrays_are_wrong_usage(tmp_path, kept):
    np.savez(tmp_path / "a.npz", format=kept, shape=(2, 2), data=np.ones(1))
    with pytest.raises(UsageError, match=r"cannot read .*a\.npz"):
        read_array(str(tmp_path / "a.npz"))


def test_an_array_may_have_the_name_that_tells_sparse_ones(tmp_path):
    np.savez(tmp_path / "a.npz", format=np.array([1, 2]), shape=(2, 2))
    assert read_array(f"{tmp_path}/a.npz:format").tolist() == [1, 2]


def test_read_array_refuses_pickles(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UsageError, match="cannot read"):
        read_array(str(tmp_path / "a.npy"))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.arange(36, dtype=np.uint8).reshape(3, 4, 3),
        np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000,
    ],
)
def test_integer_pictures_are_written_as_they_are(tmp_path, array):
    write_arrays(tmp_path / "p.png", {"out0": array})
    np.testing.assert_array_equal(read_array(str(tmp_path / "p.png")), array)


@pytest.mark.parametrize(
    ("array", "pixels"),
    [
        (np.array([[0.0, 0.5, 1.0]]), [[0, 128, 255]]),
        (np.array([[0.0, 1.0]], ml_dtypes.bfloat16), [[0, 255]]),
        (np.array([[True, False]]), [[255, 0]]),
        (np.array([[[7]]], np.uint8), [[7]]),
    ],
)
def test_other_values_are_scaled_to_pixels(array, pixels):
    assert to_pixels(array).tolist() == pixels


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array([[0.0, 1.5]]), "from 0 to 1.5"),
        (np.array([[np.nan]]), "from nan to nan"),
        (np.zeros((2, 2), np.int64), "int64"),
        (np.zeros(3, np.uint8), r"\[3\] is not a picture"),
        (np.zeros((2, 2, 5), np.uint8), "is not a picture"),
        (np.zeros((0, 2), np.uint8), "is not a picture"),
        (np.zeros((2, 2), np.complex64), "complex64"),
    ],
)
def test_to_pixels_refuses_other_arrays(array, problem):
    with pytest.raises(CommandError, match=problem):
        to_pixels(array)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "p.jpg"
    path.write_bytes(b"old")
    with pytest.raises(CommandError, match="JPEG"):
        write_arrays(path, {"out0": np.zeros((2, 2, 4), np.uint8)})
    assert path.read_bytes() == b"old"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(CommandError, match=r"cannot write '.*folder\.npy': Is a directory"):
        write_arrays(tmp_path / "folder.npy", {"x": np.zeros(3)})


def test_files_are_checked_before_the_call(tmp_path):
    check_output(tmp_path / "a.npz")
    with pytest.raises(UsageError, match="suffix"):
        check_output(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="no folder"):
        check_output(tmp_path / "missing" / "a.npy")


def test_the_number_of_tensors_has_to_fit_the_format(tmp_path):
    with pytest.raises(CommandError, match="no tensor"):
        write_arrays(tmp_path / "a.npy", {})
    with pytest.raises(CommandError, match="npz file holds several"):
        write_arrays(tmp_path / "a.npy", {"a": np.zeros(1), "b": np.zeros(1)})


def test_types_that_npy_lacks_become_float32(tmp_path):
    write_arrays(tmp_path / "a.npy", {"a": np.array([1.5], ml_dtypes.bfloat16)})
    assert np.load(tmp_path / "a.npy").dtype == np.float32


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)  # as if it were not installed
    for use in (read_array, check_output):
        with pytest.raises(CommandError, match=r"install opdispatch\[image\]"):
            use(tmp_path / "a.png" if use is check_output else str(tmp_path / "a.png"))
