"""`jt.debug`: launches that look for their own mistakes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Checks:
    """What launches check; see `debug`."""

    races: bool = False
    bounds: bool = False
    uninitialized: bool = False

    def __bool__(self) -> bool:
        return self.races or self.bounds or self.uninitialized


NO_CHECKS = Checks()

# JAX's caches of traced and compiled functions see it: under other checks a function is compiled anew.
_context = jax.make_user_context(default_value=NO_CHECKS)


def debug(
    *, races: bool = False, bounds: bool = False, uninitialized: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Launches in the context check what they do, on any platform.

    They run in the portable lowering, on a GPU too, and slower by far. What goes wrong is an error that names
    the kernel, the parameter, the element, the programs and the lines of the kernel. It is raised as the
    program runs: wrapped in JAX's own error, whose message has all of it, when the launch is waited for (for
    one whose results are not used, by `jax.effects_barrier`).

    >>> import jax.numpy as jnp, triton, triton.language as tl
    >>> import jtprim as jt
    >>> @triton.jit
    ... def double(x_ptr, out_ptr, BLOCK: tl.constexpr):
    ...     i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ...     tl.store(out_ptr + i, 2 * tl.load(x_ptr + i))  # no mask
    >>> x = jnp.arange(6.0)
    >>> with jt.debug(bounds=True):
    ...     try:
    ...         jt.kernel(double)[2](x, BLOCK=4, out_shape={"out_ptr": x}).block_until_ready()
    ...     except Exception as error:
    ...         print(next(line for line in str(error).splitlines() if "double" in line).split(" at ")[0])
    OutOfBoundsError: double: program (1, 0, 0) reads element 6 of 'x_ptr', which has 6,

    Args:
      races: two programs that access one element, one of them by a plain store, are an error, whatever they
        store; so are a plain access and an atomic one. A lock between them doesn't count: what is computed
        may still depend on the order of the programs. (What one program does twice is no race.)
      bounds: an access outside its array is an error, even if what it loads isn't used.
      uninitialized: outputs begin with NaN, integers with bytes of 0xA5 and booleans with true, in place of
        zeros, so that what the kernel doesn't write shows. Outputs to be zeroed and in-outs do not.

    Returns:
      A context manager. It applies to what is traced and compiled inside, on this thread.
    """
    return _context(Checks(races, bounds, uninitialized))  # type: ignore[no-any-return]


def current_checks() -> Checks:
    """The checks of the context."""
    return _context.value  # type: ignore[no-any-return]
