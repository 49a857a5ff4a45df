"""Where a token is, told to its query and its key."""

from array_api_compat import array_namespace

from lm.operator import check_floating, check_integers, fail, narrowed, operator, widened


def check_rotary(x, positions, *, base=10000.0):
    check_floating("rotary_embedding", x=x)
    check_integers("rotary_embedding", positions=positions)
    if x.ndim < 2 or x.shape[-1] % 2 or positions.shape != x.shape[-2:-1]:
        expected = "x of (..., sequence, an even width) and positions of (sequence,)"
        fail("rotary_embedding", expected, x=x, positions=positions)
    return x.shape, x.dtype


@operator(
    "rotary_embedding(Tensor x, Tensor positions, *, float base=10000.0) -> Tensor", check_rotary
)
def rotary_embedding(x, positions, *, base=10000.0):
    """Rows rotated by angles that grow with their position: arXiv:2104.09864.

    Elements i and i + width/2 make a pair, as in checkpoints of Llama.
    """
    xp, wide, half = array_namespace(x), widened(x), x.shape[-1] // 2
    frequencies = base ** (-xp.arange(half, dtype=xp.float64) / half)
    angles = xp.astype(xp.asarray(positions), xp.float64)[:, None] * frequencies
    cos, sin = xp.astype(xp.cos(angles), wide.dtype), xp.astype(xp.sin(angles), wide.dtype)
    one, other = wide[..., :half], wide[..., half:]
    rotated = xp.concat([one * cos - other * sin, other * cos + one * sin], axis=-1)
    return narrowed(rotated, x.dtype)
