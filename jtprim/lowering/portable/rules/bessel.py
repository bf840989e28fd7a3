"""Bessel functions of order 0 and 1, ordinary and modified, in doubles.

Up to `_FAR` by sums over the nodes of Bessel's integral (DLMF 10.9.1), whose midpoint rule converges
exponentially; the second kind is Neumann's series of the first (Abramowitz and Stegun 9.1.88), of which
each term is such a sum. Beyond it, by Hankel's asymptotic series (DLMF 10.17.3).
"""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from jtprim.lowering.portable.values import Array

_FAR = 25.0
_NODES = 40  # in (0, pi / 2); the other half of the integral is the same
_TERMS = 36
_MODIFIED_NODES = 100  # enough for every number whose result is finite
_ANGLES = (np.arange(_NODES) + 0.5) * (np.pi / 2 / _NODES)


def _wave(order: int, angles: np.ndarray) -> np.ndarray:
    return np.sin(order * angles) if order % 2 else np.cos(order * angles)


def _neumann(order: int) -> np.ndarray:
    terms = range(1, _TERMS)
    factors = [(-1) ** k * (order + 2 * k) / (k * (order + k)) for k in terms]
    return sum(f * _wave(order + 2 * k, _ANGLES) for f, k in zip(factors, terms, strict=True))


def _integral(order: int, weights: np.ndarray, x: Array) -> Array:
    """The sum of ``weights * cos(x * sin(angle))``, or with the sine for an odd order."""
    shape = (*np.shape(x), _NODES)
    at_nodes = lax.broadcast_in_dim(np.sin(_ANGLES), shape, (len(shape) - 1,))
    each = lax.mul(lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - 1))), at_nodes)
    waves = (lax.sin if order % 2 else lax.cos)(each)
    weighted = lax.mul(waves, lax.broadcast_in_dim(weights / _NODES, shape, (len(shape) - 1,)))
    return lax.reduce_sum(weighted, (len(shape) - 1,))


def _full(x: Array, number: float) -> Array:
    return lax.full_like(x, number)


def _near_first(order: int, x: Array) -> Array:
    return _integral(order, _wave(order, _ANGLES), x)


def _near_second(order: int, x: Array) -> Array:
    """The constant in the logarithm's factor is minus the digamma function at ``order + 1``."""
    logarithm = lax.add(lax.log(lax.mul(x, _full(x, 0.5))), _full(x, np.euler_gamma - order))
    total = lax.sub(lax.mul(logarithm, _near_first(order, x)), _integral(order, _neumann(order), x))
    if order == 1:
        total = lax.sub(total, lax.div(_near_first(0, x), x))
    return lax.mul(total, _full(x, 2 / math.pi))


def _far(order: int, x: Array, second: bool) -> Array:
    even, odd, term = _full(x, 0), _full(x, 0), _full(x, 1)
    for k in range(20):
        sign = (-1.0) ** (k // 2)
        signed_term = lax.mul(term, _full(x, sign))
        if k % 2:
            odd = lax.add(odd, signed_term)
        else:
            even = lax.add(even, signed_term)
        factor = (4 * order**2 - (2 * k + 1) ** 2) / (8 * (k + 1))
        term = lax.div(lax.mul(term, _full(x, factor)), x)
    phase = lax.sub(x, _full(x, (order / 2 + 0.25) * math.pi))
    sine, cosine = lax.sin(phase), lax.cos(phase)
    if second:
        wave = lax.add(lax.mul(even, sine), lax.mul(odd, cosine))
    else:
        wave = lax.sub(lax.mul(even, cosine), lax.mul(odd, sine))
    return lax.mul(wave, lax.sqrt(lax.div(_full(x, 2 / math.pi), x)))


def first_kind(order: int, x: Array) -> Array:
    size = lax.abs(x)
    far = lax.gt(size, _full(x, _FAR))
    near = _near_first(order, lax.select(far, _full(x, 0), size))
    value = lax.select(far, _far(order, lax.max(size, _full(x, _FAR)), False), near)
    value = lax.select(lax.eq(size, _full(x, np.inf)), _full(x, 0), value)
    return lax.select(lax.lt(x, _full(x, 0)), lax.neg(value), value) if order % 2 else value


def second_kind(order: int, x: Array) -> Array:
    """NaN below zero, minus infinity at it."""
    far = lax.gt(x, _full(x, _FAR))
    inside = lax.bitwise_and(lax.gt(x, _full(x, 0)), lax.bitwise_not(far))
    near = _near_second(order, lax.select(inside, x, _full(x, 1)))
    value = lax.select(far, _far(order, lax.max(x, _full(x, _FAR)), True), near)
    value = lax.select(lax.eq(x, _full(x, np.inf)), _full(x, 0), value)
    value = lax.select(lax.eq(x, _full(x, 0)), _full(x, -np.inf), value)
    return lax.select(lax.ge(x, _full(x, 0)), value, _full(x, np.nan))


def modified(order: int, x: Array) -> Array:
    """Of the first kind: the mean of ``cosh(x * cos(angle))``, or of ``cos(angle) * sinh(...)``."""
    cosines = np.cos((np.arange(_MODIFIED_NODES) + 0.5) * (np.pi / 2 / _MODIFIED_NODES))
    shape = (*np.shape(x), _MODIFIED_NODES)
    at_nodes = lax.broadcast_in_dim(cosines, shape, (len(shape) - 1,))
    each = lax.mul(lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - 1))), at_nodes)
    waves = lax.mul(at_nodes, lax.sinh(each)) if order else lax.cosh(each)
    return lax.div(lax.reduce_sum(waves, (len(shape) - 1,)), _full(x, _MODIFIED_NODES))
