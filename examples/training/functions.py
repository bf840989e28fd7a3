"""The transformer's operations on JAX arrays: launches of Triton kernels, and the same in `jax.numpy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import triton

import jtprim as jt
from examples.training import kernels

HIGHEST = jax.lax.Precision.HIGHEST

# --- Attention, with its own derivative --------------------------------------------------------

# Blocks for the memory and registers of a Hopper GPU with float32 and heads of 64; they suit smaller ones.
BLOCKS = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}

attention_kernel = jt.kernel(kernels.attention_forward)
_forward = jt.kernel(kernels.attention_forward)  # the same without a rule, for use inside it
_backward_delta = jt.kernel(kernels.attention_backward_delta)
_backward_dkdv = jt.kernel(kernels.attention_backward_dkdv)
_backward_dq = jt.kernel(kernels.attention_backward_dq)


def _attention_fwd(grid: Any, q: jax.Array, k: jax.Array, v: jax.Array, *args: Any, **kwargs: Any) -> Any:
    out, lse = _forward[grid](q, k, v, *args, **kwargs)
    return (out, lse), (q, k, v, out, lse)


def _attention_bwd(grid: Any, residuals: Any, cotangents: Any, *, out_shape: Any, **static: Any) -> Any:
    q, k, v, out, lse = residuals
    d_out, d_lse = cotangents
    heads, length, dim = q.shape
    by_rows = (triton.cdiv(length, static["BLOCK_M"]), heads)
    by_columns = (triton.cdiv(length, static["BLOCK_N"]), heads)
    delta = _backward_delta[by_rows](
        out, d_out, d_lse, length, HEAD_DIM=dim, BLOCK_M=static["BLOCK_M"], out_shape={"delta_ptr": lse}
    )
    arrays = (q, k, v, d_out, lse, delta)
    dk, dv = _backward_dkdv[by_columns](*arrays, **static, out_shape={"dk_ptr": k, "dv_ptr": v})
    dq = _backward_dq[by_rows](*arrays, **static, out_shape={"dq_ptr": q})
    return {"q_ptr": dq, "k_ptr": dk, "v_ptr": dv}


attention_kernel.defvjp(_attention_fwd, _attention_bwd)


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True, precision: str = "ieee", **blocks: int
) -> jax.Array:
    """softmax(q k^T / sqrt(dim)) v.

    Args:
      q, k, v: of one shape [..., length, dim] and one dtype; dim is a power of two, at least 16.
      causal: whether a row sees its own column and those before it alone.
      precision: of products of float32 on a GPU: ``"ieee"``, ``"tf32x3"`` or ``"tf32"``.
      **blocks: block sizes and compile options in place of `BLOCKS`.

    Returns:
      An array of the shape and dtype of `q`.
    """
    *_, length, dim = q.shape
    flat = [x.reshape(-1, length, dim) for x in (q, k, v)]
    heads = flat[0].shape[0]
    blocks = {**BLOCKS, **blocks}
    out, _ = attention_kernel[triton.cdiv(length, blocks["BLOCK_M"]), heads](
        *flat,
        scale=dim**-0.5,
        length=length,
        HEAD_DIM=dim,
        CAUSAL=causal,
        PRECISION=precision,
        out_shape={"out_ptr": flat[0], "lse_ptr": jax.ShapeDtypeStruct((heads, length), jnp.float32)},
        **blocks,
    )
    return out.reshape(q.shape)


def attention_jnp(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = True) -> jax.Array:
    scores = jnp.einsum("...qd,...kd->...qk", q, k, precision=HIGHEST) * q.shape[-1] ** -0.5
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(jnp.broadcast_to(seen, scores.shape), scores, -jnp.inf)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores, axis=-1), v, precision=HIGHEST)


# --- Layer norm and cross-entropy, differentiated by their translation -------------------------

_layer_norm = jt.kernel(kernels.layer_norm_kernel)
_cross_entropy = jt.kernel(kernels.cross_entropy_kernel)


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, *, eps: float = 1e-5) -> jax.Array:
    """Layer normalization along the last axis of a float32 array."""
    columns = x.shape[-1]
    rows = x.size // columns
    return _layer_norm[triton.cdiv(rows, 4)](
        x,
        weight,
        bias,
        n_rows=rows,
        n_columns=columns,
        eps=eps,
        ROWS=4,
        BLOCK=triton.next_power_of_2(columns),
        out_shape={"out_ptr": x},
    )


def layer_norm_jnp(x: jax.Array, weight: jax.Array, bias: jax.Array, *, eps: float = 1e-5) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + eps)
    return normal * jnp.broadcast_to(weight, x.shape) + jnp.broadcast_to(bias, x.shape)


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target].

    Args:
      logits: float32, of shape [..., classes].
      targets: int32, of shape [...].

    Returns:
      The losses, of the shape of `targets`.
    """
    classes = logits.shape[-1]
    return _cross_entropy[triton.cdiv(targets.size, 4)](
        logits,
        targets,
        n_rows=targets.size,
        n_classes=classes,
        ROWS=4,
        BLOCK=triton.next_power_of_2(classes),
        out_shape={"loss_ptr": jax.ShapeDtypeStruct(targets.shape, jnp.float32)},
    )


def cross_entropy_jnp(logits: jax.Array, targets: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


# --- Either ------------------------------------------------------------------------------------


class Ops(NamedTuple):
    """What the model is made of, beside matrix products."""

    attention: Callable[..., jax.Array]
    layer_norm: Callable[..., jax.Array]
    cross_entropy: Callable[..., jax.Array]


OPS = {
    "triton": Ops(attention, layer_norm, cross_entropy),
    "jnp": Ops(attention_jnp, layer_norm_jnp, cross_entropy_jnp),
}
