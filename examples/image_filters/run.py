"""Filters a photograph in a running daemon, and puts the results side by side into one picture.

    opdispatch serve &
    python run.py [PHOTOGRAPH] [-o filters.jpg]

Without a photograph it takes ``china.jpg``, which comes with scikit-learn.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import opdispatch_client as oc

LIBRARY = Path(__file__).with_name("image_filters.py")
TILE = (160, 240)
SPECKS = 0.03
"""How much of the picture for the median is spoilt."""

FILTERS = {
    "gaussian_blur": {"sigma": 3.0},
    "unsharp_mask": {"sigma": 2.0, "amount": 2.0},
    "sobel": {},
    "median": {},
    "equalize": {},
    "resize": {"size": [16, 24], "method": "area"},
    "tone": {"exposure": 0.4, "saturation": 1.5, "gamma": 1.2, "vignette": 0.8},
}


def find_photograph():
    import sklearn

    return Path(sklearn.__file__).parent / "datasets" / "images" / "china.jpg"


def spoil(picture):
    """Return the picture with black and white specks."""
    rng = np.random.default_rng(0)
    specks = rng.random(picture.shape[:2])
    spoilt = picture.copy()
    spoilt[specks < SPECKS] = 0
    spoilt[specks > 1 - SPECKS] = 255
    return spoilt


def draw_tile(title, picture):
    height, width = TILE
    image = Image.fromarray(picture).convert("RGB")
    image = image.resize((width, height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    draw.text((7, 5), title, fill="black")
    draw.text((6, 4), title, fill="white")
    return image


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("photograph", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("filters.jpg"))
    options = parser.parse_args()
    photograph = Image.open(options.photograph or find_photograph()).convert("RGB")
    with oc.connect() as session:
        library = session.load(LIBRARY)
        print(f"loaded {library.name} into {', '.join(library.interpreters)}")
        # It is sent once, and stays there.
        small = session.call("filters::resize", np.asarray(photograph), TILE, remote=True)
        spoilt = spoil(small.numpy())
        tiles = {"photograph": small.numpy()}
        for name, arguments in FILTERS.items():
            source = spoilt if name == "median" else small
            tiles[name] = session.call(f"filters::{name}", source, **arguments)
            print(f"filters::{name}: {tiles[name].dtype} {list(tiles[name].shape)}")
    # What the median is for: the left half is what it was given.
    half = TILE[1] // 2
    tiles["median"][:, :half] = spoilt[:, :half]
    height, width = TILE
    sheet = Image.new("RGB", (4 * width, -(-len(tiles) // 4) * height))
    for place, (title, picture) in enumerate(tiles.items()):
        sheet.paste(draw_tile(title, picture), (place % 4 * width, place // 4 * height))
    sheet.save(options.output, quality=80)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
