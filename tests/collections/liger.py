"""liger-kernel: losses, norms and activations for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from liger_kernel import ops
from liger_kernel.transformers import functional

from .cases import Case, Inputs
from .drawing import labels, normal, positive

CASES: list[Case] = []


def case(name: str, inputs: Callable[[], Inputs], run: Any, reference: Any, *of: str, **more: Any) -> None:
    CASES.append(Case(name, inputs, run, reference, of, **more))


# --- Activations -----------------------------------------------------------------------------------

for dtype in (torch.float32, torch.bfloat16):
    kind = str(dtype).removeprefix("torch.")
    pair = lambda dtype=dtype: {"a": normal(2, 5, 96, dtype=dtype), "b": normal(2, 5, 96, dtype=dtype)}
    case(f"geglu, {kind}", pair, functional.liger_geglu,
         lambda a, b: F.gelu(a.float(), approximate="tanh").to(a.dtype) * b, "a", "b")  # fmt: skip
    case(f"swiglu, {kind}", pair, functional.liger_swiglu,
         lambda a, b: F.silu(a.float()).to(a.dtype) * b, "a", "b")  # fmt: skip

case(
    "swiglu of wide rows",
    lambda: {"a": normal(3, 20000), "b": normal(3, 20000)},
    functional.liger_swiglu,
    lambda a, b: F.silu(a) * b,
    "a",
    "b",
)
case(
    "swiglu of one tensor for gate and up",
    lambda: {"y": normal(7, 128)},
    lambda y: ops.LigerFusedGateUpSiLUMulFunction.apply(y),
    lambda y: F.silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1],
    "y",
)
case(
    "relu squared",
    lambda: {"x": normal(6, 100)},
    functional.liger_relu_squared,
    lambda x: F.relu(x).square(),
    "x",
)
for columns in (64, 20000):
    case(
        f"softmax of {columns} columns",
        lambda columns=columns: {"x": normal(3, columns)},
        functional.liger_softmax,
        lambda x: F.softmax(x, -1),
        "x",
    )
case(
    "dyt",
    lambda: {"x": normal(6, 96), "alpha": torch.full((1,), 0.5), "gamma": normal(96), "beta": normal(96)},
    functional.liger_dyt,
    lambda x, alpha, gamma, beta: gamma * torch.tanh(alpha * x) + beta,
    "x",
    "alpha",
    "gamma",
    "beta",
)


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    ordered = x.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (ordered * counts > sums).sum(-1, keepdim=True)
    return F.relu(x - sums.gather(-1, support - 1) / support)


case("sparsemax", lambda: {"x": normal(5, 60)}, lambda x: functional.liger_sparsemax(x), sparsemax, "x")

# --- Norms -----------------------------------------------------------------------------------------


def rms_norm(X: Any, W: Any, eps: float = 1e-6, offset: float = 0.0) -> Any:
    normed = X * torch.rsqrt(X.square().mean(-1, keepdim=True) + eps)
    return normed if W is None else normed * (W + offset)


for mode, offset in (("llama", 0.0), ("gemma", 1.0), ("none", 0.0)):
    for rows in (6, 200):
        case(
            f"rms norm, {mode}, {rows} rows",
            lambda rows=rows: {"X": normal(rows, 64), "W": normal(64)},
            lambda X, W, mode=mode, offset=offset: functional.liger_rms_norm(X, W, 1e-6, offset, mode, False),
            lambda X, W, offset=offset: rms_norm(X, W, offset=offset),
            "X",
            "W",
        )
case(
    "rms norm of many short rows",
    lambda: {"X": normal(4096 * 8, 32), "W": normal(32)},
    lambda X, W: functional.liger_rms_norm(X, W, 1e-6, 0.0, "llama", False),
    lambda X, W: rms_norm(X, W),
    "X",
    "W",
)
case(
    "rms norm without weights",
    lambda: {"X": normal(6, 64)},
    lambda X: functional.liger_rms_norm(X, None, 1e-6, 0.0, "llama", False),
    lambda X: rms_norm(X, None),
    "X",
)
case(
    "modulated rms norm",
    lambda: {"X": normal(2, 6, 64), "W": normal(64), "scale": normal(2, 1, 64), "shift": normal(2, 1, 64)},
    lambda X, W, scale, shift: functional.liger_modulated_rms_norm(X, W, scale, shift, in_place=False),
    lambda X, W, scale, shift: rms_norm(X, W) * (1 + scale) + shift,
    "X",
    "W",
    "scale",
    "shift",
)
case(
    "rms norm fused with addition",
    lambda: {"X": normal(6, 64), "R": normal(6, 64), "W": normal(64)},
    lambda X, R, W: functional.liger_fused_add_rms_norm(X, R, W, 1e-6, in_place=False),
    lambda X, R, W: (rms_norm(X + R, W), X + R),
    "X",
    "R",
    "W",
)
case(
    "layer norm",
    lambda: {"X": normal(6, 64), "W": normal(64), "B": normal(64)},
    lambda X, W, B: functional.liger_layer_norm(X, W, B, 1e-5),
    lambda X, W, B: F.layer_norm(X, (64,), W, B, 1e-5),
    "X",
    "W",
    "B",
)
case(
    "group norm",
    lambda: {"X": normal(2, 6, 40), "W": normal(6), "B": normal(6)},
    lambda X, W, B: functional.liger_group_norm(X, W, B, 6, 2, 1e-5),
    lambda X, W, B: F.group_norm(X, 2, W, B, 1e-5),
    "X",
    "W",
    "B",
)


def poly_norm(X: Any, W: Any, B: Any) -> Any:
    return sum(W[i] * rms_norm(X ** (3 - i), None) for i in range(3)) + B


case(
    "poly norm",
    lambda: {"X": normal(6, 64), "W": normal(3), "B": normal()},
    lambda X, W, B: functional.liger_poly_norm(X, W, B, in_place=False),
    poly_norm,
    "X",
    "W",
    "B",
)

# --- Positions -------------------------------------------------------------------------------------


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def angles(*shape: int) -> dict[str, torch.Tensor]:
    angle = normal(*shape[:-1], shape[-1] // 2).repeat(*[1] * (len(shape) - 1), 2)
    return {"cos": angle.cos(), "sin": angle.sin()}


case(
    "rope",
    lambda: {"q": normal(2, 4, 7, 32), "k": normal(2, 2, 7, 32), **angles(1, 7, 32)},
    functional.liger_rope,
    lambda q, k, cos, sin: (rotated(q, cos[:, None], sin[:, None]), rotated(k, cos[:, None], sin[:, None])),
    "q",
    "k",
)


def sections(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part[i % 3] for i, part in enumerate(x.split([4, 6, 6] * 2, -1))], -1)[:, None]


case(
    "multimodal rope of Qwen2-VL",
    lambda: {"q": normal(2, 4, 7, 32), "k": normal(2, 2, 7, 32), **angles(3, 2, 7, 32)},
    lambda q, k, cos, sin: functional.liger_qwen2vl_mrope(q, k, cos, sin, [4, 6, 6]),
    lambda q, k, cos, sin: tuple(rotated(x, sections(cos), sections(sin)) for x in (q, k)),
    "q",
    "k",
)


def complex_rope(q: Any, k: Any, angle: Any) -> Any:
    factor = torch.polar(torch.ones_like(angle), angle)[None, :, None]
    turn = lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * factor)
    return tuple(turn(x).flatten(-2) for x in (q, k))


case(
    "rope of Llama 4",
    lambda: {"q": normal(2, 7, 4, 32), "k": normal(2, 7, 2, 32), "angle": normal(7, 16)},
    lambda q, k, angle: ops.LigerLlama4RopeFunction.apply(q, k, torch.polar(torch.ones_like(angle), angle)),
    complex_rope,
    "q",
    "k",
)

# --- Losses ----------------------------------------------------------------------------------------


def logits(rows: int = 9, columns: int = 70) -> Inputs:
    return {"logits": normal(rows, columns), "target": labels(rows, columns, ignored=2)}


for settings in (
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
):
    case(
        f"cross entropy {', '.join(f'{k}={v}' for k, v in settings.items())}".strip(),
        lambda: {"logits": normal(9, 70), "target": labels(9, 70, ignored=2)},
        lambda logits, target, settings=settings: functional.liger_cross_entropy(logits, target, **settings),
        lambda logits, target, settings=settings: F.cross_entropy(logits, target, **settings),
        "logits",
    )
case(
    "cross entropy with weights of classes",
    lambda: {**logits(), "weight": positive(70)},
    lambda logits, target, weight: functional.liger_cross_entropy(logits, target, weight),
    lambda logits, target, weight: F.cross_entropy(logits, target, weight),
    "logits",
)
case(
    "cross entropy with softcap and z loss",
    logits,
    lambda logits, target: functional.liger_cross_entropy(logits, target, softcap=5.0, lse_square_scale=1e-2),
    lambda logits, target: capped(logits, target),
    "logits",
)


def capped(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = 5 * torch.tanh(logits / 5)
    kept = target != -100
    z = 1e-2 * logits.logsumexp(-1).square()
    return F.cross_entropy(logits, target) + (z * kept).sum() / kept.sum()


def fused() -> Inputs:
    return {"x": normal(9, 32), "w": normal(70, 32), "target": labels(9, 70, ignored=2), "bias": normal(70)}


case(
    "linear layer fused with cross entropy",
    fused,
    lambda x, w, target, bias: functional.liger_fused_linear_cross_entropy(x, w, target, bias),
    lambda x, w, target, bias: F.cross_entropy(x @ w.T + bias, target),
    "x",
    "w",
    "bias",
)
case(
    "linear layer fused with cross entropy, scaled after",
    fused,
    lambda x, w, target, bias: 3 * functional.liger_fused_linear_cross_entropy(x, w, target, bias),
    lambda x, w, target, bias: 3 * F.cross_entropy(x @ w.T + bias, target),
    "x",
    "w",
    "bias",
)


def distributions(rows: int = 8, columns: int = 70) -> Inputs:
    return {"p": normal(rows, columns).log_softmax(-1), "q": normal(rows, columns).log_softmax(-1)}


for reduction in ("batchmean", "sum", "mean", "none"):
    for log_target in (True, False):
        case(
            f"KL divergence, {reduction}, log_target={log_target}",
            distributions,
            lambda p, q, r=reduction, log=log_target: functional.liger_kl_div(
                p, q if log else q.exp(), reduction=r, log_target=log
            ),
            lambda p, q, r=reduction, log=log_target: F.kl_div(
                p, q if log else q.exp(), reduction=r, log_target=log
            ),
            "p",
        )


def jensen_shannon(p: torch.Tensor, q: torch.Tensor, beta: float) -> torch.Tensor:
    """Of the student's and the teacher's logarithms, as the package defines it."""
    if beta == 0:
        return F.kl_div(p, q, reduction="batchmean", log_target=True)
    if beta == 1:
        return F.kl_div(q, p, reduction="batchmean", log_target=True)
    middle = torch.log(beta * q.exp() + (1 - beta) * p.exp())
    divergence = lambda one: F.kl_div(middle, one, reduction="batchmean", log_target=True)
    return beta * divergence(q) + (1 - beta) * divergence(p)


for beta in (0.0, 0.3, 1.0):
    case(
        f"Jensen-Shannon divergence, beta {beta}",
        distributions,
        lambda p, q, beta=beta: functional.liger_jsd(p, q, beta=beta),
        lambda p, q, beta=beta: jensen_shannon(p, q, beta),
        "p",
    )
for reduction in ("batchmean", "sum", "mean", "none"):
    case(
        f"total variation distance, {reduction}",
        lambda: {name: value.exp() for name, value in distributions().items()},
        lambda p, q, r=reduction: functional.liger_tvd(p, q, reduction=r),
        lambda p, q, r=reduction: reduced((p - q).abs() / 2, r),
        "p",
    )


def reduced(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    match reduction:
        case "none":
            return loss
        case "mean":
            return loss.mean()
        case "sum":
            return loss.sum()
        case _:
            return loss.sum() / loss.shape[0]


def students() -> Inputs:
    return {"x": normal(8, 16), "w": normal(70, 16), "tx": normal(8, 24), "tw": normal(70, 24)}


case(
    "linear layer fused with Jensen-Shannon divergence",
    students,
    lambda x, w, tx, tw: functional.liger_fused_linear_jsd(x, w, tx, tw),
    lambda x, w, tx, tw: jensen_shannon((x @ w.T).log_softmax(-1), (tx @ tw.T).log_softmax(-1), 0.5),
    "x",
    "w",
)
case(
    "linear layer fused with KL divergence",
    lambda: {"x": normal(8, 16), "w": normal(70, 16), "target": normal(8, 70).softmax(-1)},
    lambda x, w, target: functional.liger_fused_linear_kl_div(x, w, target),
    lambda x, w, target: F.kl_div((x @ w.T).log_softmax(-1), target, reduction="batchmean"),
    "x",
    "w",
)
case(
    "cross entropy fused with total variation distance",
    lambda: {**logits(), "teacher": normal(9, 70)},
    lambda logits, target, teacher: ops.LigerFusedCETVDFunction.apply(logits, teacher, target),
    lambda logits, target, teacher: (
        F.cross_entropy(logits, target, reduction="none"),
        (logits.softmax(-1) - teacher.softmax(-1)).abs().sum(-1) / 2 * (target != -100),
    ),
    "logits",
)


def policy(kind: str, level: str) -> tuple[Any, Any]:
    """GRPO's loss of each token by the package, and the same from its formula."""
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    def run(logits: Any, old: Any, ref: Any, ids: Any, advantages: Any) -> Any:
        loss, kl, _ = triton_grpo_loss(
            logits, old, ref, ids, advantages, inplace=False, loss_type=kind, importance_sampling_level=level
        )
        return loss, kl.detach()

    def reference(logits: Any, old: Any, ref: Any, ids: Any, advantages: Any) -> Any:
        chosen = (logits[:, :-1] / 0.9).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        kl = (ref - chosen).exp() - (ref - chosen) - 1
        weight = chosen - old
        if level == "sequence":
            weight = weight.mean(-1, keepdim=True)
        ratio = weight.exp()
        gain = advantages[:, None]
        if kind == "cispo":
            loss = -ratio.clamp(max=0.4).detach() * gain * chosen
        elif kind == "sapo":
            heat = torch.where(gain > 0, 1.0, 1.05)
            loss = -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * gain
        else:
            loss = -torch.minimum(ratio * gain, ratio.clamp(1 - 0.2, 1 + 0.4) * gain)
        loss = loss.expand_as(chosen) if level == "sequence" else loss
        return loss + 0.04 * kl, kl.detach()

    return run, reference


def policies() -> Inputs:
    ids = torch.randint(0, 70, (2, 5))
    old = normal(2, 5) * 0.2 - 4
    return {"logits": normal(2, 6, 70), "old": old, "ref": old - 0.1, "ids": ids, "advantages": normal(2)}


for kind in ("grpo", "cispo", "sapo"):
    case(f"{kind} loss of tokens", policies, *policy(kind, "token"), "logits")
case("grpo loss of sequences", policies, *policy("grpo", "sequence"), "logits")

# --- Layers ----------------------------------------------------------------------------------------

case(
    "embedding",
    lambda: {"weight": normal(50, 24), "ids": torch.randint(0, 50, (2, 9))},
    lambda weight, ids: ops.LigerEmbeddingFunction.apply(weight, ids),
    lambda weight, ids: F.embedding(ids, weight),
    "weight",
)


def causal(scores: torch.Tensor, by: float) -> torch.Tensor:
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), by)


for sparse in (False, True):
    case(
        f"multi-token attention, sparse={sparse}",
        lambda: {"scores": normal(1, 3, 16, 16), "weight": normal(3, 3, 3, 3), "bias": normal(3)},
        lambda scores, weight, bias, sparse=sparse: functional.liger_multi_token_attention(
            scores, weight, bias, padding=1, sparse=sparse
        ),
        lambda scores, weight, bias, sparse=sparse: causal(
            F.conv2d(
                (sparsemax if sparse else lambda x: x.softmax(-1))(causal(scores, -1e9)),
                weight,
                bias,
                padding=1,
            ),
            0.0,
        ),
        "scores",
        "weight",
        "bias",
    )


def neighborhood(query: Any, key: Any, value: Any) -> Any:
    places = torch.arange(query.shape[2])
    near = (places[:, None] - places[None]).abs() <= 3
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~near, -torch.inf)
    return scores.softmax(-1) @ value


case(
    "neighborhood attention",
    lambda: {name: normal(1, 2, 40, 32) for name in ("query", "key", "value")},
    lambda query, key, value: functional.liger_fused_neighborhood_attention(query, key, value, 7, 1),
    neighborhood,
    "query",
    "key",
    "value",
)


def attention_over_blocks(V: Any, w_query: Any, w_norm: Any) -> Any:
    scores = rms_norm(V, w_norm) @ w_query
    return (scores.softmax(0)[..., None] * V).sum(0)


case(
    "attention residuals",
    lambda: {"V": normal(4, 2, 5, 32), "w_query": normal(32), "w_norm": normal(32)},
    functional.liger_attn_res,
    attention_over_blocks,
    "V",
    "w_query",
    "w_norm",
)


def experts(x: Any, up: Any, down: Any, ids: Any, weights: Any) -> Any:
    result = torch.zeros_like(x)
    for k in range(ids.shape[1]):
        gate, value = torch.einsum("th,tih->ti", x, up[ids[:, k]]).chunk(2, -1)
        result = result + weights[:, k, None] * torch.einsum(
            "ti,thi->th", F.silu(gate) * value, down[ids[:, k]]
        )
    return result


case(
    "mixture of experts",
    lambda: {
        "x": normal(20, 64),
        "up": normal(4, 64, 64) / 8,
        "down": normal(4, 64, 32) / 8,
        "ids": torch.stack([torch.randperm(4)[:2] for _ in range(20)]).int(),
        "weights": positive(20, 2),
    },
    lambda x, up, down, ids, weights: ops.LigerFusedMoEFunction.apply(x, up, down, ids, weights),
    lambda x, up, down, ids, weights: experts(x, up, down, ids.long(), weights),
    "x",
    "up",
    "down",
    "weights",
)


def coefficients(x: Any, phi: Any, b: Any, alpha: Any) -> Any:
    """Of manifold-constrained hyper-connections, for streams (..., 4, C)."""
    flat = x.flatten(-2).float()
    mixed = rms_norm(flat, None) @ phi
    pre = torch.sigmoid(alpha[0] * mixed[..., :4] + b[:4])
    post = 2 * torch.sigmoid(alpha[1] * mixed[..., 4:8] + b[4:8])
    residual = (alpha[2] * mixed[..., 8:] + b[8:]).unflatten(-1, (4, 4))
    matrix = residual.softmax(-1) + 1e-6
    matrix = matrix / (matrix.sum(-2, keepdim=True) + 1e-6)
    for _ in range(19):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + 1e-6)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + 1e-6)
    return pre, post, matrix


case(
    "coefficients of hyper-connections",
    lambda: {"x": normal(6, 4, 32), "phi": normal(128, 24) / 8, "b": normal(24), "alpha": positive(3)},
    lambda x, phi, b, alpha: functional.liger_mhc_coeffs(
        x, phi, b, alpha[0], alpha[1], alpha[2], allow_fp32=True
    ),
    coefficients,
    "x",
    "phi",
    "b",
    "alpha",
)
case(
    "input of hyper-connections",
    lambda: {"x": normal(6, 4, 32), "h_pre": positive(6, 4)},
    functional.liger_mhc_pre,
    lambda x, h_pre: (h_pre[..., None] * x).sum(-2),
    "x",
    "h_pre",
)
case(
    "output of hyper-connections",
    lambda: {"x": normal(6, 4, 32), "f": normal(6, 32), "post": positive(6, 4), "res": positive(6, 4, 4)},
    lambda x, f, post, res: functional.liger_mhc_post_res(x, f, post, res),
    lambda x, f, post, res: res @ x + post[..., None] * f[:, None],
    "x",
    "f",
    "post",
    "res",
)
