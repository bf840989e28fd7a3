"""flash-linear-attention (fla-core): linear attention in chunks, recurrences, and layers around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fla import ops
from fla.modules import activations, rotary
from fla.modules.causal_conv1d import causal_conv1d
from fla.modules.fused_cross_entropy.ops import cross_entropy_loss
from fla.modules.fused_kl_div.ops import fused_kl_div_loss
from fla.modules.fused_linear_cross_entropy.ops import fused_linear_cross_entropy_loss
from fla.modules.grpo import ops as grpo
from fla.modules.norm import fused_norm_gate, l2norm, layernorm, layernorm_gated
from fla.modules.token_shift import token_shift, token_shift_ref
from fla.ops import utils
from fla.ops.abc.naive import naive_recurrent_abc
from fla.ops.attn.naive import naive_parallel_attn
from fla.ops.attnres import fused_attnres, naive_attnres
from fla.ops.based.naive import naive_parallel_based
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.forgetting_attn import naive_forgetting_attn
from fla.ops.gated_delta_product import chunk_gated_delta_product
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule import naive_recurrent_gated_delta_rule
from fla.ops.gated_oja_rule import chunk_gated_oja_rule, fused_recurrent_gated_oja_rule
from fla.ops.gdn2 import chunk_gdn2, fused_recurrent_gdn2, naive_recurrent_gdn2
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.generalized_delta_rule.iplr.naive import iplr_recurrence
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.gsa.naive import naive_recurrent_gsa
from fla.ops.hgrn import chunk_hgrn
from fla.ops.hgrn.naive import naive_recurrent_hgrn
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
from fla.ops.log_linear_attn.naive import naive_log_linear_attn
from fla.ops.mesa_net import naive_mesa_net_exact
from fla.ops.nsa import naive_nsa
from fla.ops.parallax import naive_parallax
from fla.ops.path_attn import naive_path_attn
from fla.ops.precond_gated_delta_rule import naive_recurrent_precond_gated_delta_rule
from fla.ops.precond_kda import naive_recurrent_precond_kda
from fla.ops.rebased import parallel_rebased
from fla.ops.rebased.naive import naive_parallel_rebased
from fla.ops.retention.naive import naive_retention
from fla.ops.rwkv4 import fused_recurrent_rwkv4
from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6
from fla.ops.rwkv7 import fused_addcmul, fused_k_update, gate_output_correction
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from fla.ops.stickbreaking_attn import naive_stickbreaking_attn
from fla.ops.ttt import chunk_ttt_linear, fused_chunk_ttt_linear
from fla.ops.ttt.naive import chunk_ttt_linear_ref
from fla.ops.wall_attn import naive_wall_attn, parallel_wall_attn

from .cases import Case, Inputs
from .drawing import decay, labels, normal, positive, unit

CASES: list[Case] = []

# Of the tensors (B, T, H, K): two chunks, the second one partly filled.
B, T, H, K = 2, 70, 2, 32


def case(name: str, inputs: Callable[[], Inputs], run: Any, reference: Any, *of: str, **more: Any) -> None:
    CASES.append(Case(name, inputs, run, reference, of, **more))


def first(function: Any, **fixed: Any) -> Any:
    """The first of several results."""

    def run(*args: Any, **given: Any) -> Any:
        results = function(*args, **given, **fixed)
        return results[0] if isinstance(results, (tuple, list)) else results

    return run


def heads_first(function: Any) -> Any:
    """A reference of tensors (B, H, T, ...), as one of (B, T, H, ...)."""

    def run(**given: Any) -> Any:
        turned = {
            name: value.transpose(1, 2) if isinstance(value, torch.Tensor) and value.ndim > 2 else value
            for name, value in given.items()
        }
        results = function(**turned)
        return (results[0] if isinstance(results, tuple) else results).transpose(1, 2)

    return run


# What the parameters of attention are, by the names that most of the package gives them.
DRAWN: dict[str, Callable[[], torch.Tensor]] = {
    "q": lambda: normal(B, T, H, K) / 2,
    "k": lambda: unit(B, T, H, K),
    "v": lambda: normal(B, T, H, K),
    "p": lambda: unit(B, T, H, K),
    "beta": lambda: positive(B, T, H),
    "g": lambda: decay(B, T, H),
    "gk": lambda: decay(B, T, H, K),
}


def drawn(names: str, **others: Callable[[], Any]) -> Callable[[], Inputs]:
    draws = {**{name: DRAWN[name] for name in names.split()}, **others}
    return lambda: {name: draw() for name, draw in draws.items()}


def halved(draw: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return lambda: draw().bfloat16()


def family(
    names: str,
    functions: dict[str, Any],
    reference: Any,
    without: tuple[str, ...] = (),
    half: bool = False,
    **others: Any,
) -> None:
    """Several functions of the same arguments with one reference: results, and gradients of all arguments."""
    inputs = drawn(names, **others)
    if half:  # which some functions insist on
        inputs = drawn(
            "",
            **{
                name: halved(draw)
                for name, draw in {**{n: DRAWN[n] for n in names.split()}, **others}.items()
            },
        )
    of = tuple(name for name in (*names.split(), *others) if name not in without)
    for name, function in functions.items():
        case(name, inputs, first(function), first(reference), *of)


# --- Linear attention ------------------------------------------------------------------------------

family(
    "q k v",
    {
        "linear attention, chunk": functools.partial(ops.chunk_linear_attn, normalize=False),
        "linear attention, fused chunk": functools.partial(ops.fused_chunk_linear_attn, normalize=False),
        "linear attention, recurrent": functools.partial(ops.fused_recurrent_linear_attn, normalize=False),
    },
    functools.partial(naive_recurrent_linear_attn, normalize=False),
)
family(
    "q k v g",
    {
        "simple GLA, chunk": ops.chunk_simple_gla,
        "simple GLA, fused chunk": ops.fused_chunk_simple_gla,
        "simple GLA, recurrent": ops.fused_recurrent_simple_gla,
        "simple GLA, parallel": ops.parallel_simple_gla,
    },
    naive_recurrent_simple_gla,
)
family(
    "q k v",
    {
        "retention, chunk": ops.chunk_retention,
        "retention, fused chunk": ops.fused_chunk_retention,
        "retention, recurrent": ops.fused_recurrent_retention,
        "retention, parallel": ops.parallel_retention,
    },
    heads_first(naive_retention),
)
family(
    "q k v",
    {
        "lightning attention, chunk": lambda q, k, v: ops.chunk_lightning_attn(q, k, v, 1, 4),
        "lightning attention, recurrent": lambda q, k, v: ops.fused_recurrent_lightning_attn(q, k, v, 1, 4),
    },
    lambda q, k, v: naive_recurrent_simple_gla(
        q, k, v, torch.tensor([-(8 / H * (1 - 1 / 4)) * h for h in range(H)]).expand(B, T, H)
    ),
)
family(
    "q k v",
    {"GLA, chunk": lambda q, k, v, g: ops.chunk_gla(q, k, v, g)},
    lambda q, k, v, g: naive_recurrent_gla(q, k, v, g),
    g=DRAWN["gk"],
)
family("q k v gk", {"GLA, recurrent": ops.fused_recurrent_gla}, naive_recurrent_gla)
for reverse in (True,):
    family(
        "q k v gk",
        {"GLA, recurrent, reversed": functools.partial(ops.fused_recurrent_gla, reverse=reverse)},
        lambda **given: naive_recurrent_gla(**{n: x.flip(1) for n, x in given.items()})[0].flip(1),
    )
family(
    "q k v",
    {"based, parallel": ops.parallel_based, "based, fused chunk": ops.fused_chunk_based},
    heads_first(naive_parallel_based),
    q=lambda: normal(B, T, H, 16),
    k=lambda: normal(B, T, H, 16),
)
family(
    "q k v",
    {"rebased": parallel_rebased},
    heads_first(naive_parallel_rebased),
    q=lambda: normal(B, T, H, 16),
    k=lambda: normal(B, T, H, 16),
)
slots = {"s": lambda: normal(B, T, H, 16), "g": lambda: decay(B, T, H, 16)}
family(
    "q k v",
    {
        "GSA, chunk": lambda q, k, v, s, g: ops.chunk_gsa(q, k, v, s, g),
        "GSA, recurrent": lambda q, k, v, s, g: ops.fused_recurrent_gsa(q, k, v, s, g),
    },
    lambda q, k, v, s, g: naive_recurrent_gsa(q, k, v, s, g),
    **slots,
)
family(
    "q k v",
    {"ABC, chunk": ops.chunk_abc},
    heads_first(naive_recurrent_abc),
    s=lambda: normal(B, T, H, 16),
)
family(
    "k v",
    {
        "RWKV6, chunk": lambda r, k, v, w, u: ops.chunk_rwkv6(r, k, v, w, u),
        "RWKV6, recurrent": lambda r, k, v, w, u: ops.fused_recurrent_rwkv6(r, k, v, w, u),
    },
    heads_first(lambda r, k, v, w, u: naive_recurrent_rwkv6(r, k, v, w, u)),
    r=DRAWN["q"],
    w=DRAWN["gk"],
    u=lambda: normal(H, K),
)
family(
    "",
    {"HGRN, chunk": chunk_hgrn, "HGRN, recurrent": ops.fused_recurrent_hgrn},
    naive_recurrent_hgrn,
    x=lambda: normal(B, T, 64),
    g=lambda: decay(B, T, 64),
)


def rwkv4(w: Any, u: Any, k: Any, v: Any, state: Any) -> Any:
    w = -torch.exp(w)
    alpha, gamma, top = (part[:, 0] for part in state.split(1, 1))
    results = []
    for t in range(k.shape[1]):
        here = torch.maximum(top, u + k[:, t])
        one, other = (top - here).exp(), (u + k[:, t] - here).exp()
        results.append((one * alpha + other * v[:, t]) / (one * gamma + other))
        here = torch.maximum(top + w, k[:, t])
        one, other = (top + w - here).exp(), (k[:, t] - here).exp()
        alpha, gamma, top = one * alpha + other * v[:, t], one * gamma + other, here
    return torch.stack(results, 1)


case(
    "RWKV4, recurrent",
    lambda: {
        "w": normal(64),
        "u": normal(64),
        "k": normal(B, 20, 64),
        "v": normal(B, 20, 64),
        "state": positive(B, 3, 1, 64),
    },
    first(fused_recurrent_rwkv4),
    lambda w, u, k, v, state: rwkv4(w, u, k, v, state[:, :, 0]),
    "w",
    "u",
    "k",
    "v",
)
family(
    "q k v g",
    {"log-linear attention": ops.chunk_log_linear_attn},
    functools.partial(naive_log_linear_attn, scale=1.0),
    **{name: lambda: unit(B, T, H, 64) for name in "qkv"},
    level_scales=lambda: positive(B, T, H, 8),
)


def comba(q: Any, k: Any, v: Any, p: Any, g: Any, beta: Any) -> Any:
    """What the package's kernels compute; its own reference decays the state before `p` looks at it."""
    state = torch.zeros(B, H, K, K)
    results = []
    for t in range(T):
        value = (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, p[:, t])) * beta[:, t, :, None]
        state = state * g[:, t, :, None, None].exp() + torch.einsum("bhk,bhv->bhkv", k[:, t], value)
        results.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t] * K**-0.5))
    return torch.stack(results, 1)


# --- Delta rules -----------------------------------------------------------------------------------

family(
    "q k v beta",
    {"delta rule, recurrent": ops.fused_recurrent_delta_rule},
    heads_first(delta_rule_recurrence),
)
family(
    "q k v beta",
    {"delta rule, chunk": ops.chunk_delta_rule},
    heads_first(delta_rule_recurrence),
    half=True,
)
family(
    "q k v g beta",
    {"gated delta rule, chunk": ops.chunk_gated_delta_rule},
    naive_recurrent_gated_delta_rule,
)
family(
    "q k v g beta",
    {"gated delta rule, recurrent": ops.fused_recurrent_gated_delta_rule},
    naive_recurrent_gated_delta_rule,
    without=("q", "k", "v", "g", "beta"),
)
family(
    "q k v beta",
    {"KDA, chunk": ops.chunk_kda},
    naive_recurrent_kda,
    g=DRAWN["gk"],
)
family(
    "q k v beta",
    {"KDA, recurrent": ops.fused_recurrent_kda},
    naive_recurrent_kda,
    g=DRAWN["gk"],
    without=("q", "k", "v", "beta", "g"),
)
family(
    "q k v p g beta",
    {"comba, chunk": ops.chunk_comba},
    comba,
)
family(
    "q k v p g beta",
    {"comba, recurrent": ops.fused_recurrent_comba},
    comba,
    without=("q", "k", "v", "p", "g", "beta"),
)
ranks = {"a": lambda: -unit(B, T, H, K), "b": lambda: unit(B, T, H, K) / 2}
family(
    "q k v",
    {"IPLR, chunk": ops.chunk_iplr_delta_rule},
    heads_first(lambda q, k, v, a, b: iplr_recurrence(q, k, v, a, b)),
    without=("q", "k", "v", "a", "b"),
    **ranks,
)
family(
    "q k v",
    {"IPLR, recurrent": ops.fused_recurrent_iplr_delta_rule},
    heads_first(lambda q, k, v, a, b: iplr_recurrence(q, k, v, a, b)),
    **ranks,
)
for name, function, without in (
    ("chunk", ops.chunk_dplr_delta_rule, ()),
    ("recurrent", ops.fused_recurrent_dplr_delta_rule, ("q", "k", "v", "gk", "a", "b")),
):
    family(
        "q k v gk",
        {f"DPLR, {name}": function},
        heads_first(lambda q, k, v, gk, a, b: dplr_recurrence(q, k, v, a, b, gk)),
        without=without,
        **ranks,
    )
for name, function, without in (
    ("chunk", ops.chunk_rwkv7, ()),
    ("recurrent", functools.partial(ops.fused_recurrent_rwkv7, scale=1.0), ("r", "w", "k", "v", "a", "b")),
):
    family(
        "k v",
        {f"RWKV7, {name}": function},
        heads_first(lambda r, w, k, v, a, b: dplr_recurrence(r * K**0.5, k, v, a, b, w)),
        without=without,
        r=DRAWN["q"],
        w=DRAWN["gk"],
        **ranks,
    )
family(
    "q",
    {"gated delta product": functools.partial(chunk_gated_delta_product, num_householder=2)},
    functools.partial(naive_recurrent_gated_delta_product, num_householder=2, cu_seqlens=None, scale=K**-0.5),
    half=True,
    k=lambda: unit(B, 2 * T, H, K),
    v=lambda: normal(B, 2 * T, H, K),
    g=DRAWN["g"],
    beta=lambda: positive(B, 2 * T, H),
)
for name, function, without in (
    ("chunk", chunk_gdn2, ()),
    ("recurrent", fused_recurrent_gdn2, ("q", "k", "v", "g", "b", "w")),
):
    family(
        "q k v",
        {f"GDN2, {name}": function},
        naive_recurrent_gdn2,
        without=without,
        g=DRAWN["gk"],
        b=lambda: positive(B, T, H, K),
        w=lambda: positive(B, T, H, K),
    )
for name, function, without in (
    ("chunk", chunk_gated_oja_rule, ()),
    ("recurrent", fused_recurrent_gated_oja_rule, ("q", "k", "v", "gv", "beta")),
):
    case(
        f"gated Oja rule, {name}",
        drawn(
            "q", k=lambda: normal(B, T, H, K), v=lambda: unit(B, T, H, K), gv=DRAWN["gk"], beta=DRAWN["beta"]
        ),
        first(function),
        lambda q, k, v, gv, beta: oja(q, k, v, gv, beta),
        *(() if without else ("q", "k", "v", "gv", "beta")),
    )


def oja(q: Any, k: Any, v: Any, gv: Any, beta: Any) -> Any:
    """The delta rule with keys and values exchanged, decayed along the values."""
    state = torch.zeros(B, H, K, K)
    results = []
    for t in range(T):
        state = state * gv[:, t, :, None].exp()
        key = k[:, t] - torch.einsum("bhkv,bhv->bhk", state, v[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", key * beta[:, t, :, None], v[:, t])
        results.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t] * K**-0.5))
    return torch.stack(results, 1)


# The references normalize what the kernels take for normalized.
preconditioned = {"q": DRAWN["k"], "g_atk": DRAWN["g"], "beta_atk": DRAWN["beta"]}
family(
    "q k v g beta",
    {
        "preconditioned gated delta rule, chunk": functools.partial(
            ops.chunk_precond_gated_delta_rule, use_qk_l2norm_in_kernel=False
        ),
        "preconditioned gated delta rule, recurrent": functools.partial(
            ops.fused_recurrent_precond_gated_delta_rule, use_qk_l2norm_in_kernel=False
        ),
    },
    naive_recurrent_precond_gated_delta_rule,
    without=("q", "k", "v", "g", "beta", *preconditioned),
    **preconditioned,
)
preconditioned = {"q": DRAWN["k"], "g": DRAWN["gk"], "g_atk": DRAWN["g"], "beta_atk": DRAWN["beta"]}
family(
    "q k v beta",
    {
        "preconditioned KDA, chunk": ops.chunk_precond_kda,
        "preconditioned KDA, recurrent": functools.partial(
            ops.fused_recurrent_precond_kda, use_qk_l2norm_in_kernel=False
        ),
    },
    naive_recurrent_precond_kda,
    without=("q", "k", "v", "beta", *preconditioned),
    **preconditioned,
)
family(
    "q k v g beta",
    {"MesaNet": ops.chunk_mesa_net},
    naive_mesa_net_exact,
    lamb=lambda: 0.5 + positive(H, K),
)

# --- Softmax attention and its kin -----------------------------------------------------------------

family("q k v", {"attention": ops.parallel_attn}, naive_parallel_attn)
family(
    "q k v",
    {"attention in a window": functools.partial(ops.parallel_attn, window_size=16)},
    functools.partial(naive_parallel_attn, window_size=16),
)
family("q k v g", {"attention with decay": ops.parallel_attn}, naive_parallel_attn)
family("q k v g", {"forgetting attention": ops.parallel_forgetting_attn}, naive_forgetting_attn)
family("q k v", {"stick-breaking attention": ops.parallel_stickbreaking_attn}, naive_stickbreaking_attn)
family("q k v", {"parallax": ops.parallel_parallax}, naive_parallax, half=True, r=DRAWN["q"])
family(
    "q k v beta",
    {"PaTH attention": ops.parallel_path_attn},
    functools.partial(naive_path_attn, g=torch.zeros(B, T, H), scale=K**-0.5),
    w=lambda: unit(B, T, H, K),
)
family(
    "q k v",
    {"wall attention": parallel_wall_attn},
    functools.partial(naive_wall_attn, scale=K**-0.5),
    without=("g",),  # the reference has no gradient of it
    g=DRAWN["gk"],
)
blocks = lambda: torch.arange(T)[:, None].floor_divide(32).sub(torch.arange(2)).clamp(min=0)
case(
    "native sparse attention",
    lambda: {
        "q": normal(1, T, 16, K),
        "k": normal(1, T, 1, K),
        "v": normal(1, T, 1, K),
        "g_slc": positive(1, T, 16),
        "g_swa": positive(1, T, 16),
        "block_indices": blocks().view(1, T, 1, 2).contiguous(),
    },
    first(ops.parallel_nsa, block_size=32, block_counts=2),
    first(naive_nsa, block_size=32, block_counts=2, window_size=0, g_cmp=None),
    "q",
    "k",
    "v",
    "g_slc",
)
family(
    "q k v",
    {"TTT, chunk": chunk_ttt_linear, "TTT, fused chunk": fused_chunk_ttt_linear},
    lambda **given: chunk_ttt_linear_ref(**given),
    without=("q", "k", "v", "w", "b", "eta"),
    w=lambda: normal(H, K),
    b=lambda: normal(H, K),
    eta=lambda: positive(B, T, H, 1) / 50,
)
case(
    "attention over residuals",
    lambda: {
        "query": normal(32),
        "residuals": [normal(2, 9, 32) for _ in range(4)],
        "rms_weight": positive(32),
    },
    fused_attnres,
    naive_attnres,
    "query",
    "rms_weight",
)

# --- Activations and norms -------------------------------------------------------------------------

one = lambda: {"x": normal(6, 100)}
two = lambda: {"x": normal(6, 100), "y": normal(6, 100)}
for name, reference in {
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "swish": F.silu,
}.items():
    case(name, one, lambda x, name=name: getattr(activations, name)(x), lambda x, f=reference: f(x), "x")
case("swiglu", two, lambda x, y: activations.swiglu(x, y), lambda x, y: F.silu(x) * y, "x", "y")
case(
    "sigmoidglu", two, lambda x, y: activations.sigmoidglu(x, y), lambda x, y: torch.sigmoid(x) * y, "x", "y"
)
weights = lambda: {**two(), "weight": normal(24, 100), "bias": normal(24)}
case(
    "swiglu and linear layer",
    weights,
    lambda **x: activations.swiglu_linear(*x.values()),
    lambda x, y, weight, bias: F.linear(F.silu(x) * y, weight, bias),
    "x",
    "y",
    "weight",
    "bias",
)
case(
    "sigmoidglu and linear layer",
    weights,
    lambda **x: activations.sigmoidglu_linear(*x.values()),
    lambda x, y, weight, bias: F.linear(torch.sigmoid(x) * y, weight, bias),
    "x",
    "y",
    "weight",
    "bias",
)

normed = lambda: {"x": normal(2, 9, 64), "weight": normal(64), "bias": normal(64)}
of = ("x", "weight", "bias")
case("l2 norm", one, l2norm.l2norm, lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), "x")
case(
    "layer norm",
    normed,
    layernorm.layer_norm,
    lambda x, weight, bias: F.layer_norm(x, (64,), weight, bias),
    *of,
)
rms = lambda x, weight, bias, eps=1e-5: F.rms_norm(x, (x.shape[-1],), eps=eps) * weight + bias
case("rms norm", normed, layernorm.rms_norm, rms, *of)
case(
    "rms norm after addition",
    lambda: {**normed(), "residual": normal(2, 9, 64)},
    lambda x, weight, bias, residual: layernorm.rms_norm(x, weight, bias, residual=residual, prenorm=True),
    lambda x, weight, bias, residual: (rms(x + residual, weight, bias), x + residual),
    *of,
    "residual",
)
case(
    "group norm",
    normed,
    functools.partial(layernorm.group_norm, num_groups=4),
    lambda x, weight, bias: F.group_norm(x.flatten(0, 1), 4, weight, bias).view_as(x),
    *of,
)
linear = lambda: {
    "x": normal(2, 9, 64),
    "norm_weight": normal(64),
    "norm_bias": normal(64),
    "linear_weight": normal(32, 64),
    "linear_bias": normal(32),
}
case(
    "layer norm and linear layer",
    linear,
    layernorm.layer_norm_linear,
    lambda x, norm_weight, norm_bias, linear_weight, linear_bias: F.linear(
        F.layer_norm(x, (64,), norm_weight, norm_bias), linear_weight, linear_bias
    ),
    "x",
    "norm_weight",
    "norm_bias",
    "linear_weight",
    "linear_bias",
)
gated = lambda: {"x": normal(2, 9, 64), "g": normal(2, 9, 64), "weight": normal(64), "bias": normal(64)}
for gate, function in {"swish": F.silu, "sigmoid": torch.sigmoid}.items():
    case(
        f"rms norm, gated by {gate}",
        gated,
        functools.partial(fused_norm_gate.rms_norm_gated, activation=gate),
        lambda x, g, weight, bias, f=function: rms(x, weight, bias) * f(g),
        "x",
        "g",
        "weight",
        "bias",
    )
case(
    "layer norm, gated by swish",
    gated,
    fused_norm_gate.layer_norm_gated,
    lambda x, g, weight, bias: F.layer_norm(x, (64,), weight, bias) * F.silu(g),
    "x",
    "g",
    "weight",
    "bias",
)
for before in (True, False):
    case(
        f"rms norm of Mamba 2, norm before gate={before}",
        lambda: {"x": normal(2, 9, 64), "weight": normal(64), "z": normal(2, 9, 64)},
        lambda x, weight, z, before=before: layernorm_gated.rmsnorm_fn(
            x, weight, None, z=z, eps=1e-6, norm_before_gate=before
        ),
        lambda x, weight, z, before=before: layernorm_gated.rms_norm_ref(
            x, weight, None, z=z, norm_before_gate=before
        ),
        "x",
        "weight",
        "z",
    )

# --- Other layers ----------------------------------------------------------------------------------

for interleaved in (False, True):
    case(
        f"rotary embedding, interleaved={interleaved}",
        lambda: {"x": normal(B, T, H, K), "cos": normal(T, K // 2), "sin": normal(T, K // 2)},
        functools.partial(rotary.ops.rotary_embedding, interleaved=interleaved),
        functools.partial(rotary.ops.rotary_embedding_ref, interleaved=interleaved),
        "x",
    )
case("token shift", lambda: {"x": normal(B, T, 64)}, token_shift, token_shift_ref, "x")
for activation in (None, "swish"):
    case(
        f"causal convolution, activation={activation}",
        lambda: {"x": normal(B, T, 64), "weight": normal(64, 4), "bias": normal(64)},
        first(causal_conv1d, activation=activation),
        lambda x, weight, bias, f=(lambda x: x) if activation is None else F.silu: f(
            F.conv1d(x.mT, weight[:, None], bias, padding=3, groups=64)[..., :T].mT
        ),
        "x",
        "weight",
        "bias",
    )
case(
    "RWKV7, addcmul",
    lambda: {"x": normal(B, T, 64), "d": normal(B, T, 64), **{f"w{i}": normal(1, 1, 64) for i in range(6)}},
    lambda x, d, **w: fused_addcmul.fused_addcmul_rwkv7(x, d, *w.values()),
    lambda x, d, **w: tuple(torch.addcmul(x, d, one) for one in w.values()),
    "x",
    "d",
    *(f"w{i}" for i in range(6)),
)
case(
    "RWKV7, update of keys",
    lambda: {"k": normal(B, T, 64), "a": positive(B, T, 64), "ka": normal(1, 1, 64)},
    lambda k, a, ka: fused_k_update.fused_k_rwkv7(k, a, ka),
    lambda k, a, ka: k * (1 + (a - 1) * ka),
    "k",
    "a",
    "ka",
)
case(
    "RWKV7, correction of output",
    lambda: {
        "o": normal(B, T, 64),
        "r": normal(B, T, H, K),
        "k": normal(B, T, H, K),
        "r_k": normal(H, K),
        "v": normal(B, T, H, K),
        "g": normal(B, T, 64),
    },
    lambda o, r, k, r_k, v, g: gate_output_correction.gate_output_correction(o, r, k, r_k, v, g),
    lambda o, r, k, r_k, v, g: (o + ((r * k * r_k).sum(-1, keepdim=True) * v).flatten(2)) * g,
    "o",
    "r",
    "k",
    "r_k",
    "v",
    "g",
)

# --- Losses ----------------------------------------------------------------------------------------

case(
    "cross entropy",
    lambda: {"logits": normal(9, 70), "target": labels(9, 70, ignored=2)},
    lambda logits, target: cross_entropy_loss(logits, target)[0],
    lambda logits, target: F.cross_entropy(logits, target, reduction="none"),
    "logits",
)
case(
    "cross entropy, smoothed",
    lambda: {"logits": normal(9, 70), "target": labels(9, 70)},
    lambda logits, target: cross_entropy_loss(logits, target, label_smoothing=0.1)[0],
    lambda logits, target: F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1),
    "logits",
)
case(
    "linear layer fused with cross entropy",
    lambda: {"x": normal(9, 32), "weight": normal(70, 32), "target": labels(9, 70, ignored=2)},
    lambda x, weight, target: fused_linear_cross_entropy_loss(x, target, weight),
    lambda x, weight, target: F.cross_entropy(x @ weight.T, target),
    "x",
    "weight",
)
case(
    "linear layers fused with KL divergence",
    lambda: {"x": normal(9, 32), "tx": normal(9, 32), "w": normal(70, 32), "tw": normal(70, 32)},
    lambda x, tx, w, tw: fused_kl_div_loss(x, tx, w, tw),
    lambda x, tx, w, tw: F.kl_div((x @ w.T).log_softmax(-1), (tx @ tw.T).softmax(-1), reduction="batchmean"),
    "x",
    "w",
)
case(
    "GRPO",
    lambda: {
        "logits": normal(2, 6, 70),
        "ref_logp": normal(2, 5) / 5 - 4,
        "input_ids": torch.randint(0, 70, (2, 8)),
        "advantages": normal(2),
    },
    lambda **given: grpo.fused_grpo_loss(**given, beta=0.1),
    lambda **given: grpo.grpo_loss_torch(**given, beta=0.1),
    "logits",
)

# --- Pieces ----------------------------------------------------------------------------------------

case(
    "sum over chunks",
    lambda: {"g": normal(B, 128, H)},
    lambda g: utils.chunk_local_cumsum(g, 64),
    lambda g: g.unflatten(1, (2, 64)).cumsum(2).flatten(1, 2),
)
case(
    "sum over chunks of vectors",
    lambda: {"g": normal(B, 128, H, K)},
    lambda g: utils.chunk_local_cumsum(g, 64),
    lambda g: g.unflatten(1, (2, 64)).cumsum(2).flatten(1, 2),
)
for shape in ((B, T, H), (B, T, H, K)):
    for reverse in (False, True):
        case(
            f"sum of {shape}, reverse={reverse}",
            lambda shape=shape: {"s": normal(*shape)},
            functools.partial(utils.chunk_global_cumsum, reverse=reverse),
            (lambda s: s.flip(1).cumsum(1).flip(1)) if reverse else (lambda s: s.cumsum(1)),
        )
case("matmul", lambda: {"a": normal(50, 40), "b": normal(40, 30)}, utils.matmul, lambda a, b: a @ b)
case(
    "mean pooling",
    drawn("k"),
    lambda k: utils.mean_pooling(k, 32),
    lambda k: torch.stack([part.mean(1) for part in k.split(32, 1)], 1),
    "k",
)
case(
    "logsumexp",
    lambda: {"x": normal(9, 100)},
    utils.logsumexp_fwd,
    lambda x: x.logsumexp(-1),
)
case("softmax", lambda: {"x": normal(9, 100)}, utils.softmax_fwd, lambda x: x.softmax(-1))


def triangles(size: int, length: int) -> torch.Tensor:
    """Strictly lower triangular blocks, each in the rows of its chunk; ragged at the end."""
    blocks = (normal(B, length, H, size) / 4).unflatten(1, (-1, size)).transpose(2, 3)
    return blocks.tril(-1).transpose(2, 3).flatten(1, 2)


def inverted(A: torch.Tensor) -> torch.Tensor:
    blocks = A.unflatten(1, (-1, A.shape[-1])).transpose(2, 3)
    return torch.linalg.inv(blocks + torch.eye(A.shape[-1])).transpose(2, 3).flatten(1, 2)


for size in (16, 32, 64):
    case(
        f"inverses of triangles of {size}",
        lambda size=size: {"A": triangles(size, 128)},
        lambda A: utils.solve_tril(A),
        inverted,
    )
