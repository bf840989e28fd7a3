"""What a case is, and how its outcome is found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import torch

from jtprim.errors import UnsupportedError

from .bridge import bridged

Inputs = dict[str, Any]

# The error of a float tensor, relative to the reference's root mean square. Packages' own tests allow more.
TOLERANCES = {torch.float64: 1e-4, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """One use of a package, and the same in PyTorch.

    Attributes:
      name: of the case.
      inputs: makes the arguments, after PyTorch's generator was seeded.
      run: the package's function, called with the arguments by name.
      reference: PyTorch's, called likewise.
      differentiate: arguments to whose gradients the comparison extends.
      tolerance: in place of the dtype's.
    """

    name: str
    inputs: Callable[[], Inputs]
    run: Callable[..., Any]
    reference: Callable[..., Any]
    differentiate: tuple[str, ...] = ()
    tolerance: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
      verdict: "agreed", "differed" (from the reference), "unsupported" (jtprim says that it has no
        translation) or "failed" (any other error).
      reason: of a verdict other than "agreed", in one line.
      kernels: those that were launched.
      seconds: that it took.
    """

    package: str
    case: str
    verdict: str
    reason: str
    kernels: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_case(package: str, case: Case, *, trace: bool = False) -> Outcome:
    start = time.monotonic()
    verdict, reason = "agreed", ""
    with bridged() as launched:
        try:
            differences = list(_differences(case))
            if differences:
                verdict, reason = "differed", differences[0]
            elif not launched:
                verdict, reason = "failed", "launched no kernel"
        except Exception as error:
            if trace:
                traceback.print_exc()
            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, UnsupportedError):
                cause = cause.__cause__
            verdict = "unsupported" if isinstance(cause, UnsupportedError) else "failed"
            reason = f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:300]
    jax.clear_caches()  # some hundred compiled programs would take the machine's memory
    return Outcome(package, case.name, verdict, reason, tuple(sorted(launched)), time.monotonic() - start)


def _differences(case: Case) -> Iterator[str]:
    torch.manual_seed(0)
    inputs = case.inputs()
    found = _results(case, case.run, inputs)
    expected = _results(case, case.reference, inputs)
    if list(found) != list(expected):
        yield f"has results {', '.join(found)}, for {', '.join(expected)}"
        return
    for name, tensor in expected.items():
        difference = _difference(found[name], tensor, case.tolerance)
        if difference:
            yield f"{name} {difference}"


def _results(case: Case, function: Callable[..., Any], inputs: Inputs) -> dict[str, torch.Tensor]:
    """Results of a function, and gradients of the arguments."""
    own = {name: _copied(value) for name, value in inputs.items()}
    leaves = {name: own[name].requires_grad_() for name in case.differentiate}
    # A function may write to its arguments, which it may not to leaves.
    passed = {**own, **{name: leaf.clone() for name, leaf in leaves.items()}}
    returned = [tensor for tensor in _tensors(function(**passed)) if tensor is not None]
    results = {f"result {i}": tensor.detach().clone() for i, tensor in enumerate(returned)}
    if leaves:
        torch.manual_seed(1)
        outputs = [tensor for tensor in returned if tensor.requires_grad]
        cotangents = [torch.randn(tensor.shape).to(tensor.dtype) for tensor in outputs]
        gradients = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            results[f"gradient of {name}"] = torch.zeros(()) if gradient is None else gradient
    return results


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return copy.copy_(value) if value.numel() else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(child) for child in value)
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor | None]:
    if isinstance(value, torch.Tensor) or value is None:
        yield value
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield from _tensors(child)


def _difference(found: torch.Tensor, expected: torch.Tensor, tolerance: float | None) -> str:
    """In what way a tensor is another than the expected one; empty if it is not."""
    if found.shape != expected.shape:
        return f"has shape {tuple(found.shape)}, for {tuple(expected.shape)}"
    if not expected.is_floating_point():
        wrong = int((found != expected).sum())
        return f"differs in {wrong} of {expected.numel()} elements" if wrong else ""
    if tolerance is None:
        tolerance = max(TOLERANCES.get(t.dtype, 1e-1) for t in (found, expected))
    one, other = found.detach().double(), expected.detach().double()
    finite = torch.isfinite(other)
    if not torch.equal(torch.isfinite(one), finite):
        return f"is finite in {int(torch.isfinite(one).sum())} elements, for {int(finite.sum())}"
    one, other = one[finite], other[finite]
    size = other.square().mean().sqrt() if other.numel() else torch.zeros(())
    error = (one - other).square().mean().sqrt() if other.numel() else torch.zeros(())
    relative = float(error / size) if size else float(error)
    return f"has a relative error of {relative:.1e}" if relative > tolerance else ""
