"""The cubin that a program carries: the compiled one without the PTX text inside."""

import jax.numpy as jnp
import pytest

import jtprim as jt
from examples import functions
from jtprim.lowering.cubin import without_ptx_text

A = jnp.ones((64, 64), jnp.float16)


def image(target):
    return jt.inspect(functions.matmul, A, A, platform=target).kernels[0].image


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"])
def test_only_the_ptx_text_goes(target):
    before = image(target)
    after = without_ptx_text(before)
    assert len(after) == len(before)
    changed = [index for index, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    start, end = changed[0], changed[-1] + 1
    assert not any(after[start:end])
    text = before[start:end].decode()
    assert f".target sm_{target[5:]}" in text
    assert ".entry matmul_kernel" in text
    assert b".entry matmul_kernel" not in after


def test_a_second_time_changes_nothing():
    once = without_ptx_text(image("cuda:90"))
    assert without_ptx_text(once) == once
