"""The errors that jtprim raises, and the wording they share.

Every error is one sentence that starts with the kernel's name, says what was got and what was
expected, and gives the way out. Each class also derives from the built-in exception that fits, so
``except TypeError`` works as it does elsewhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class JtprimError(Exception):
    """Base of all errors that jtprim raises about a launch.

    Attributes:
      kernel: name of the kernel that was launched.
      parameter: name of the kernel's parameter at fault, or None where the launch as a whole is.
    """

    def __init__(self, sentence: str, *, kernel: str, parameter: str | None = None):
        super().__init__(f"{kernel}: {sentence}")
        self.kernel = kernel
        self.parameter = parameter


class LaunchTypeError(JtprimError, TypeError):
    """An argument or setting of a launch has a type that nothing accepts."""


class LaunchValueError(JtprimError, ValueError):
    """An argument or setting of a launch has a value that is out of range or contradicts another."""


class UnsupportedError(JtprimError, NotImplementedError):
    """What is asked for can't be done, on this platform or at all; the sentence says which."""


class OutOfSharedMemoryError(LaunchValueError):
    """A compiled kernel needs more shared memory than its target has.

    Attributes:
      needed_bytes, available_bytes: of shared memory for one thread block.
    """

    def __init__(self, sentence: str, *, kernel: str, needed_bytes: int, available_bytes: int):
        super().__init__(sentence, kernel=kernel)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class OutOfBoundsError(JtprimError, IndexError):
    """Under `jtprim.debug`: a program accesses memory outside the array."""


class RaceError(JtprimError, RuntimeError):
    """Under `jtprim.debug`: two programs access one element, and nothing says which comes first."""


def listing(names: Iterable[str]) -> str:
    """``a, b, c`` for messages, or ``none``."""
    return ", ".join(names) or "none"


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with the closest candidates, or nothing where none is close."""
    close = difflib.get_close_matches(name, list(candidates), n=3, cutoff=0.6)
    if not close:
        return ""
    return " Did you mean " + " or ".join(repr(candidate) for candidate in close) + "?"
