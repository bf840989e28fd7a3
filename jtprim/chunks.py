"""`jt.chunk_bytes`: how much memory the portable lowering may take."""

from __future__ import annotations

import contextlib

import jax

# XLA fuses most intermediate values away, so a few times this is what a kernel needs at its peak.
DEFAULT_CHUNK_BYTES = 128 << 20

# JAX's caches of traced and compiled functions see it.
_context = jax.make_user_context(default_value=DEFAULT_CHUNK_BYTES)


def chunk_bytes(limit: int) -> contextlib.AbstractContextManager[None]:
    """Bounds what launches in the context take where they are translated to JAX operations.

    Programs of a grid run many at once there; so many that the operands and results of the kernel's largest
    operation take `limit` bytes over all of them. More than `limit` is needed at the peak where several such
    values live at once; with less, more programs run one after the other.

    Args:
      limit: bytes, at least 1; 128 MiB outside any such context.

    Returns:
      A context manager. It applies to what is traced and compiled inside, on this thread; GPUs' own launches
      aren't concerned.

    Raises:
      ValueError: `limit` is no positive int.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(f"jt.chunk_bytes got {limit!r}; expected a positive number of bytes.")
    return _context(limit)  # type: ignore[no-any-return]


def current_chunk_bytes() -> int:
    """The limit of the context."""
    return _context.value  # type: ignore[no-any-return]
