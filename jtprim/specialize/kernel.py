"""A Triton kernel as the other stages see it: its function, its parameters, and its key.

A kernel is a `triton.jit` or `gluon.jit` function, or any nesting of `triton.autotune` and
`triton.heuristics` around one. What is learned about a function is kept here, in maps that die with it;
nothing is ever written on Triton's objects.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITCallable, JITFunction

Kernel: TypeAlias = JITFunction | Autotuner | Heuristics
T = TypeVar("T")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel's signature."""

    name: str
    is_constexpr: bool
    has_default: bool
    default: Any


def is_kernel(value: Any) -> bool:
    """Whether `value` is something that Triton compiles and launches as ``value[grid](...)``."""
    return isinstance(_innermost(value), JITFunction)


def is_interpreted(value: Any) -> bool:
    """Whether `value` is for Triton's interpreter, as `triton.jit` makes kernels under TRITON_INTERPRET=1."""
    # Not imported for this: where there is such a kernel, Triton has imported it.
    interpreter = sys.modules.get("triton.runtime.interpreter")
    return interpreter is not None and isinstance(_innermost(value), interpreter.InterpretedFunction)


def jit_function(kernel: Kernel) -> JITFunction:
    """The `triton.jit` function inside autotuners and heuristics, however nested."""
    function = _innermost(kernel)
    assert isinstance(function, JITFunction)  # `is_kernel` was asked before
    return function


def _innermost(value: Any) -> Any:
    while isinstance(value, (Autotuner, Heuristics)):
        value = value.fn
    return value


def kernel_name(kernel: Kernel) -> str:
    return jit_function(kernel).__name__


# Held while Triton parses Python. `ast.parse` of CPython 3.11 counts its depth for all threads
# together: a garbage collection inside it, whose callbacks (jaxlib has one) let another thread run, makes
# it fail with a SystemError. Triton's frontend holds the GIL throughout, so nothing is slower for it.
parsing = threading.RLock()


def cache_key(function: JITCallable) -> str:
    """Triton's key of a function's source and of all that it calls."""
    with parsing:
        return str(function.cache_key)


class PerFunction(Generic[T]):
    """What is known of each function; it is forgotten when the function dies.

    By identity: a `JITFunction` hashes by its `cache_key`, and to ask for that before every function that
    it calls is defined would fix a key which doesn't know their sources.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[JITFunction], T]] = {}

    def get(self, function: JITFunction) -> T | None:
        found = self._known.get(id(function))
        return None if found is None else found[1]

    def setdefault(self, function: JITFunction, value: T) -> T:
        place = id(function)
        gone = weakref.ref(function, lambda _: self._known.pop(place, None))
        return self._known.setdefault(place, (gone, value))[1]

    def clear(self) -> None:
        self._known.clear()


_parameters: PerFunction[tuple[Parameter, ...]] = PerFunction()


def kernel_parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """The kernel's parameters in the order of its signature."""
    function = jit_function(kernel)
    found = _parameters.get(function)
    if found is None:
        made = (
            Parameter(p.name, p.is_constexpr, p.default is not inspect.Parameter.empty, p.default)
            for p in function.params
        )
        found = _parameters.setdefault(function, tuple(made))
    return found


# --- Keys --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KernelSource:
    """A `triton.jit` function together with what its source and its globals are now.

    Attributes:
      function: the function itself.
      key: Triton's `cache_key`, extended where a global that the source uses has changed since Triton
        computed it. Two sources are equal when the function and the key are.
    """

    function: JITFunction
    key: str
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.key))

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    def compilable(self) -> JITFunction:
        """The function to hand to Triton's compiler.

        Triton memoizes the key on the function and refuses to launch it once a global has changed. A
        copy that carries the new key compiles anew, and is found anew in Triton's disk cache.
        """
        if self.key == cache_key(self.function):
            return self.function
        changed = copy.copy(self.function)
        changed.hash = self.key
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelSource) and self.function is other.function and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class _Tracked:
    """A global name that a kernel's code reads, and its value when the kernel was first seen."""

    name: str
    scope: dict[str, Any]
    value: Any

    def change(self) -> str:
        """The present value as text, if it is another one; else nothing."""
        now = self.scope.get(self.name)
        if isinstance(now, JITCallable) or isinstance(self.value, JITCallable):
            if now is self.value:
                return ""
            return cache_key(now) if isinstance(now, JITCallable) else repr(now)
        return "" if now == self.value else repr(now)


_tracked: PerFunction[tuple[_Tracked, ...]] = PerFunction()


def kernel_source(kernel: Kernel) -> KernelSource:
    """The kernel's function as it is now."""
    function = jit_function(kernel)
    changes = [f"{one.name}={change}" for one in _tracked_globals(function) if (change := one.change())]
    if not changes:
        return KernelSource(function, cache_key(function))
    text = "-".join([cache_key(function), *changes])
    return KernelSource(function, hashlib.sha256(text.encode()).hexdigest())


class KernelWatch:
    """`kernel_source` of one kernel again and again, quick while nothing has changed."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel
        self._tracked: tuple[_Tracked, ...] = ()
        self._unchanged: KernelSource | None = None

    def source(self) -> KernelSource:
        if self._unchanged is None:
            # Not before the first launch: a helper may be defined after the kernel that calls it.
            self._tracked = _tracked_globals(jit_function(self._kernel))
        for one in self._tracked:
            if one.change():
                return kernel_source(self._kernel)
        if self._unchanged is None:
            self._unchanged = kernel_source(self._kernel)
        return self._unchanged


def _tracked_globals(function: JITFunction) -> tuple[_Tracked, ...]:
    found = _tracked.get(function)
    if found is None:
        found = _tracked.setdefault(function, tuple(_track(function, set())))
    return found


def _track(function: JITCallable, seen: set[int]) -> Iterator[_Tracked]:
    """The globals of a function and of all that it calls.

    Triton's `used_global_vals` names the values; Triton 3.6 leaves out those of functions that are
    called before they were compiled themselves, and no version notices that a called function was
    replaced, so calls are followed here by the names in the code.
    """
    if id(function) in seen or (function.__module__ or "").startswith("triton."):
        return
    seen.add(id(function))
    cache_key(function)  # fills in the names that it uses
    for (name, _), (value, scope) in function.used_global_vals.items():
        yield _Tracked(name, scope, value)
    scope = function.__globals__
    names = function.fn.__code__.co_names
    for name in names:
        value = scope.get(name)
        if isinstance(value, JITCallable):
            yield _Tracked(name, scope, value)
            yield from _track(value, seen)
        elif isinstance(value, types.ModuleType) and not value.__name__.startswith("triton"):
            members = {member: getattr(value, member, None) for member in names}
            for member, callee in members.items():
                if isinstance(callee, JITCallable):
                    yield _Tracked(member, value.__dict__, callee)
                    yield from _track(callee, seen)


def clear_caches() -> None:
    _parameters.clear()
    _tracked.clear()
