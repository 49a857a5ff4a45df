"""Arrays in files: ``.npy``, ``.npz`` and images, as arguments and as results.

Images need Pillow, which the extra ``opdispatch[image]`` installs.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from opdispatch_client.cli.exit_codes import CommandError, UsageError
from opdispatch_client.cli.standard_input import read_standard_input

Array = np.ndarray[Any, Any]

WRITTEN_SUFFIXES = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
_IMAGE_SUFFIXES = frozenset(WRITTEN_SUFFIXES[2:])
_CHANNELS = frozenset({1, 2, 3, 4})
_BEGINNINGS = {b"\x93NUMPY": ".npy", b"PK": ".npz"}
_SPARSE_FORMATS = frozenset({b"bsr", b"coo", b"csc", b"csr", b"dia"})
"""The values of the array ``format`` that ``scipy.sparse.save_npz`` writes."""


def read_array(spec: str) -> Array:
    """Read the single array of a file; ``FILE.npz:NAME`` selects one of several.

    It is sparse if ``scipy.sparse.save_npz`` wrote the file. Raises UsageError if the file or array
    does not exist, or cannot be read.
    """
    arrays = read_arrays(spec)
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    names = ", ".join(arrays)
    raise UsageError(
        f"{spec!r} has {len(arrays)} arrays: {names}; choose one with @{spec}:{next(iter(arrays))}"
        if arrays
        else f"{spec!r} has no arrays"
    )


def read_arrays(spec: str) -> dict[str, Array]:
    """Read every array of a file by name, in order; for ``FILE.npz:NAME`` only that one."""
    if spec == "-":
        return _read_standard_input()
    text, name = spec, None
    head, separator, tail = spec.rpartition(".npz:")
    if separator:
        text, name = f"{head}.npz", tail
    path = Path(os.path.expanduser(text))
    if not os.path.exists(path):  # for a name that is too long, Path.exists raises an error
        raise UsageError(f"there is no file {text!r}")
    try:
        # NumPy does not close files that it opened itself and cannot read.
        with path.open("rb") as file:
            match path.suffix.lower():
                case ".npy":
                    arrays = {path.stem: _check_array(np.load(file, allow_pickle=False), path)}
                case ".npz":
                    arrays = _read_npz(file, path)
                case _:
                    arrays = {path.stem: _read_image(file, path)}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {text!r}: {reason}") from None
    if name is None:
        return arrays
    if name not in arrays:
        raise UsageError(f"{text!r} has no array {name!r}; it has {', '.join(arrays) or 'none'}")
    return {name: arrays[name]}


def _read_standard_input() -> dict[str, Array]:
    """Read every array on standard input, in the format recognized by its first bytes."""
    content = read_standard_input()
    suffix = next((s for magic, s in _BEGINNINGS.items() if content.startswith(magic)), ".image")
    file, path = io.BytesIO(content), Path(f"standard input{suffix}")
    try:
        if suffix == ".npz":
            return _read_npz(file, path)
        if suffix == ".npy":
            return {"stdin": _check_array(np.load(file, allow_pickle=False), path)}
        return {"stdin": _read_image(file, path)}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"standard input is not a .npy file, a .npz file or an image: {error}"
        ) from None


def check_output(path: Path) -> None:
    """Raise UsageError if results cannot be written to such a file; called before the call."""
    suffix = path.suffix.lower()
    if suffix not in WRITTEN_SUFFIXES:
        raise UsageError(
            f"cannot write {str(path)!r}: its suffix has to be one of {', '.join(WRITTEN_SUFFIXES)}"
        )
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    if suffix in _IMAGE_SUFFIXES:
        _import_pillow()


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the arrays to the file, in the format of its suffix.

    Raises CommandError if there are none, if there are several and the format holds only one, if
    the format cannot represent them, or if the file cannot be written.
    """
    if not arrays:
        raise CommandError(f"nothing to write to {str(path)!r}: the operator returned no tensor")
    suffix = path.suffix.lower()
    if suffix != ".npz" and len(arrays) > 1:
        raise CommandError(
            f"cannot write {len(arrays)} tensors to {str(path)!r}; a .npz file holds several"
        )
    first = next(iter(arrays.values()))
    # The file is written in one step, after everything that may fail.
    content = io.BytesIO()
    if suffix == ".npz":
        _write_npz(content, arrays)
    elif suffix == ".npy":
        np.save(content, _storable(first), allow_pickle=False)
    else:
        _write_image(content, suffix, to_pixels(first))
    try:
        path.write_bytes(content.getbuffer())
    except OSError as error:
        raise CommandError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def to_pixels(array: Array) -> Array:
    """Return the array as pixels: uint8 or, for one channel, uint16.

    Raises CommandError if it does not have the shape of a picture, or has values outside the range
    of pixels.
    """
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in _CHANNELS)
    if not is_picture or 0 in array.shape:
        raise CommandError(
            f"a tensor of shape {list(array.shape)} is not a picture; expected [height, width] or "
            "[height, width, channels] with 1 to 4 channels"
        )
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint8 or (array.dtype == np.uint16 and array.ndim == 2):
        return array
    if _is_floating(array):
        values = array.astype(np.float64)
        low, high = float(values.min()), float(values.max())
        if low >= 0 and high <= 1:
            return np.rint(values * 255).astype(np.uint8)
        raise CommandError(
            f"a picture of {array.dtype.name} has values from {low:g} to {high:g}; expected values "
            "from 0 to 1"
        )
    raise CommandError(
        f"a tensor of {array.dtype.name} is not a picture; expected bool, uint8, a float type with "
        "values from 0 to 1, or uint16 with one channel"
    )


def _read_npz(file: BinaryIO, path: Path) -> dict[str, Array]:
    archive = np.load(file, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise UsageError(f"{str(path)!r} has a single array; name such a file .npy")
    with archive:
        if "format" in archive.files and archive["format"].tobytes() in _SPARSE_FORMATS:
            return {path.stem: _read_sparse(file)}
        return {name: _check_array(archive[name], path) for name in archive.files}


def _read_sparse(file: BinaryIO) -> Any:
    """Return the array that ``scipy.sparse.save_npz`` wrote: as COO, or otherwise as CSR."""
    try:
        import scipy.sparse  # type: ignore[import-untyped]
    except ImportError:
        raise CommandError(
            "sparse arrays need SciPy, which is not installed (install opdispatch[sparse])"
        ) from None
    file.seek(0)
    array = scipy.sparse.load_npz(file)
    return array if array.format == "coo" else array.tocsr()


def _check_array(array: Any, path: Path) -> Array:
    if not isinstance(array, np.ndarray):  # an archive with the wrong suffix
        raise UsageError(f"{str(path)!r} is not a single array; name an archive .npz")
    return array


def _read_image(file: BinaryIO, path: Path) -> Array:
    image_module = _import_pillow()
    from PIL import ImageOps

    try:
        with image_module.open(file) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode in ("P", "PA"):
                has_alpha = "transparency" in upright.info or upright.mode == "PA"
                upright = upright.convert("RGBA" if has_alpha else "RGB")
            elif upright.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
                upright = upright.convert("RGB")
            return np.array(upright)
    except image_module.UnidentifiedImageError:
        raise UsageError(f"{str(path)!r} is not a .npy file, a .npz file or an image") from None
    except image_module.DecompressionBombError as error:
        raise UsageError(f"the image {str(path)!r} is too large: {error}") from None


def _write_npz(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    # Not np.savez, which cannot take arrays with the names of its own parameters.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _storable(array), allow_pickle=False)


def _write_image(file: BinaryIO, suffix: str, pixels: Array) -> None:
    image_module = _import_pillow()
    image_format = image_module.registered_extensions()[suffix]
    try:
        image_module.fromarray(pixels).save(file, format=image_format)
    except (OSError, ValueError, KeyError) as error:
        raise CommandError(f"cannot write a {image_format} image: {error}") from None


def _import_pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise CommandError(
            "images need Pillow, which is not installed (install opdispatch[image])"
        ) from None
    return Image


def _is_floating(array: Array) -> bool:
    # The types of ml_dtypes have kind "V" and convert to float.
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and array.dtype.names is None)


def _storable(array: Array) -> Array:
    """Return the array with a type that NumPy's format supports: bfloat16 and float8 as float32."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
