"""Two tensors side by side, a piece at a time: bits compared first, memory bounded, any strides."""

from __future__ import annotations

from collections.abc import Iterator

import torch

#: Elements in one piece. Measured: float64 temporaries of this size stay in the cache; from 2**18 on every pass over
#: them costs two to four times as much. And just below the 2**15 from which torch splits an operation among threads:
#: on a busy machine waiting for each other costs them ten times what such a small piece of work does.
PIECE = 2**15 - 2**10

#: On an accelerator a piece must be large enough to hide the launches and the wait for its result.
ACCELERATOR_PIECE = 2**22

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """View a tensor as integers of its own size (complex: as its two parts, a last dimension more)."""
    if x.dtype.is_complex:
        x = torch.view_as_real(x)
    return x.view(_BITS[x.dtype.itemsize])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors have the same dtype, shape and bits.

    ``-0.0`` and ``+0.0`` are different bits, and so are two NaNs with different payloads; a NaN has the same
    bits as itself.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.numel():
        return True  # whatever strides it has, it cannot be viewed in other words
    if a.device == b.device and a.is_contiguous() and b.is_contiguous():
        return torch.equal(*_widest(bits_of(a).view(-1), bits_of(b).view(-1)))
    return all(torch.equal(bits_of(x), bits_of(y)) for _, x, y in pieces(a, b))


def _widest(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """View both as int64 where length and alignment allow: half the time of narrower words."""
    size = a.dtype.itemsize
    starts = int(a.storage_offset()) | int(b.storage_offset()) | a.numel()
    return (a.view(torch.int64), b.view(torch.int64)) if (starts * size) % 8 == 0 else (a, b)


def piece_size(*tensors: torch.Tensor) -> int:
    """Return how many elements one piece has where these tensors are."""
    return PIECE if all(t.device.type == "cpu" for t in tensors) else ACCELERATOR_PIECE


def pieces(
    a: torch.Tensor, b: torch.Tensor, size: int | None = None
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Walk two tensors of one shape together.

    Parameters
    ----------
    a, b : Tensor, one shape
        Any strides, expanded ones included; devices may differ (``b``'s piece moves to ``a``, or the piece of
        the one on an accelerator that has no float64 to the CPU).
    size : int or None
        Largest number of elements of a piece.

    Yields
    ------
    (int, Tensor, Tensor)
        Position of the first element in row-major order, and both pieces, one-dimensional.
    """
    size = size or piece_size(a, b)
    if a.is_contiguous() and b.is_contiguous():
        walk = _slices(a.view(-1), b.view(-1), size, 0)
    else:
        walk = _blocks(a, b, size, 0)
    for start, x, y in walk:
        yield start, *_together(x, y)


def _slices(
    a: torch.Tensor, b: torch.Tensor, size: int, start: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    for i in range(0, a.numel(), size):
        yield start + i, a[i : i + size], b[i : i + size]


def _blocks(
    a: torch.Tensor, b: torch.Tensor, size: int, start: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Cut along the first dimension until a block is small enough to be copied."""
    if a.numel() == 0:
        return
    if a.numel() <= size:
        yield start, a.reshape(-1), b.reshape(-1)
        return
    row = a.numel() // a.shape[0]
    if row > size:
        for i in range(a.shape[0]):
            yield from _blocks(a[i], b[i], size, start + i * row)
        return
    rows = size // row
    for i in range(0, a.shape[0], rows):
        yield start + i * row, a[i : i + rows].reshape(-1), b[i : i + rows].reshape(-1)


def _together(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if a.device == b.device and a.device.type != "mps":
        return a, b
    if "mps" in (a.device.type, b.device.type) or a.device.type == "cpu":
        return a.cpu(), b.cpu()
    return a, b.to(a.device)


def position(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Turn a row-major position into an index of a tensor of shape ``shape``."""
    index: list[int] = []
    for length in reversed(shape):
        flat, i = divmod(flat, length)
        index.append(i)
    return tuple(reversed(index))


def position_of(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Turn an index into a tensor of shape ``shape`` into its row-major position."""
    flat = 0
    for i, length in zip(index, shape, strict=False):
        flat = flat * length + i
    return flat
