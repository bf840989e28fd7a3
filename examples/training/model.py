"""A decoder-only transformer on bytes, its loss, and Adam, in plain JAX arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.training.functions import OPS, Ops

VOCABULARY = 256
Parameters = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Of a model and its batches.

    Attributes:
      width: of a token's vector; `head_dim` of each head divides it.
      length: tokens in a sequence.
      batch: sequences in a step.
      checkpoint: whether blocks are computed again in the backward pass instead of kept.
    """

    width: int
    layers: int
    head_dim: int
    length: int
    batch: int
    checkpoint: bool = False


SIZES = {
    "cpu": Size(width=64, layers=2, head_dim=16, length=64, batch=4),
    "gpu": Size(width=384, layers=6, head_dim=64, length=512, batch=16),
}

# --- The text ----------------------------------------------------------------------------------


def text(limit: int = 1_000_000) -> np.ndarray:
    """Bytes of Python's standard library, which is wherever Python is."""
    found = b"\n".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))
    return np.frombuffer(found[:limit], np.uint8)


def batches(size: Size, steps: int, seed: int = 0) -> np.ndarray:
    """Random pieces of the text: int32, of shape [steps, batch, length + 1]."""
    data = text()
    starts = np.random.default_rng(seed).integers(0, len(data) - size.length - 1, (steps, size.batch, 1))
    return data[starts + np.arange(size.length + 1)].astype(np.int32)


# --- The model ---------------------------------------------------------------------------------


def initial(size: Size, seed: int = 0) -> Parameters:
    """Random parameters; those of the blocks are stacked along a first axis."""
    random = np.random.default_rng(seed)
    width, layers = size.width, size.layers

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(0, 0.02, shape), jnp.float32)

    return {
        "tokens": normal(VOCABULARY, width),
        "places": normal(size.length, width),
        "blocks": {
            "norm_1": (jnp.ones((layers, width)), jnp.zeros((layers, width))),
            "qkv": normal(layers, width, 3 * width),
            "mix": normal(layers, width, width) / (2 * layers) ** 0.5,
            "norm_2": (jnp.ones((layers, width)), jnp.zeros((layers, width))),
            "up": normal(layers, width, 4 * width),
            "down": normal(layers, 4 * width, width) / (2 * layers) ** 0.5,
        },
        "norm": (jnp.ones(width), jnp.zeros(width)),
    }


def block(ops: Ops, size: Size, x: jax.Array, p: Parameters) -> jax.Array:
    """Attention and a layer of neurons, each added to x, of shape [batch, length, width]."""
    batch, length, width = x.shape
    qkv = ops.layer_norm(x, *p["norm_1"]) @ p["qkv"]
    q, k, v = qkv.reshape(batch, length, 3, -1, size.head_dim).transpose(2, 0, 3, 1, 4)
    attended = ops.attention(q, k, v, causal=True).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + attended @ p["mix"]
    return x + jax.nn.gelu(ops.layer_norm(x, *p["norm_2"]) @ p["up"]) @ p["down"]


def loss(p: Parameters, tokens: jax.Array, *, ops: Ops, size: Size) -> jax.Array:
    """The mean cross-entropy of each next byte, in nats; tokens are int32 [batch, length + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def layer(x: jax.Array, p: Parameters) -> tuple[jax.Array, None]:
        return block(ops, size, x, p), None

    with jax.default_matmul_precision("highest"):
        x = p["tokens"][inputs] + p["places"][None]
        x, _ = jax.lax.scan(jax.checkpoint(layer) if size.checkpoint else layer, x, p["blocks"])
        logits = ops.layer_norm(x, *p["norm"]) @ p["tokens"].T
        return ops.cross_entropy(logits, targets).mean()


# --- Training ----------------------------------------------------------------------------------


def adam(p: Any, gradients: Any, state: Any, rate: float, b1: float = 0.9, b2: float = 0.99) -> Any:
    """One step of Adam (Kingma and Ba, 2015): the new parameters and state."""
    count, means, squares = state
    count = count + 1
    means = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, means, gradients)
    squares = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g**2, squares, gradients)

    def moved(p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        return p - rate * (m / (1 - b1**count)) / (jnp.sqrt(s / (1 - b2**count)) + 1e-8)

    return jax.tree.map(moved, p, means, squares), (count, means, squares)


def train(kind: str, size: Size, steps: int, *, rate: float = 1e-3, seed: int = 0) -> Iterator[jax.Array]:
    """Trains a model and yields each step's loss as an array.

    Args:
      kind: ``"triton"`` or ``"jnp"``.
      size: of the model.
      steps: how many batches.
      rate: Adam's.
      seed: of the parameters and batches, which are the same for both kinds.
    """

    @jax.jit
    def step(p: Parameters, state: Any, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(p, tokens, ops=OPS[kind], size=size)
        return *adam(p, gradients, state, rate), value

    p = initial(size, seed)
    zeros = jax.tree.map(jnp.zeros_like, p)
    state = (jnp.zeros(()), zeros, zeros)
    for tokens in batches(size, steps, seed):
        p, state, value = step(p, state, tokens)
        yield value
