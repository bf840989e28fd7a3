"""tl.rand, tl.randn, tl.randint and Philox, against the generator's definition (Salmon et al., 2011)."""

import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch


def philox(seed, counter, rounds):
    """Philox-4x32: four words for a counter of four."""
    key, c = [seed & 0xFFFFFFFF, seed >> 32], list(counter)
    for _ in range(rounds):
        p0, p1 = 0xCD9E8D57 * c[2], 0xD2511F53 * c[0]
        c = [(p0 >> 32) ^ c[1] ^ key[0], p0 & 0xFFFFFFFF, (p1 >> 32) ^ c[3] ^ key[1], p1 & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@triton.jit
def draw(words, numbers, seed, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, i, ROUNDS)
    tl.store(words + i * 4, a)
    tl.store(words + i * 4 + 1, b)
    tl.store(words + i * 4 + 2, c)
    tl.store(words + i * 4 + 3, d)
    tl.store(numbers + i * 4, tl.rand(seed, i, ROUNDS))
    tl.store(numbers + i * 4 + 1, tl.randn(seed, i, ROUNDS))
    tl.store(numbers + i * 4 + 2, tl.randint(seed, i, ROUNDS).to(tl.int32, bitcast=True).to(tl.float32))
    _, _, e, _ = tl.philox(seed, i, i * 0, i * 0 + 7, i * 0, ROUNDS)
    tl.store(numbers + i * 4 + 3, (e & 0xFFFF).to(tl.float32))


def uniform(word):
    """Triton's map of a word to [0, 1)."""
    signed = word - 2**32 if word >= 2**31 else word
    return np.float32(np.float32(-signed - 1 if signed < 0 else signed) * np.float32(4.6566127342e-10))


@pytest.mark.parametrize("seed", [0, 1234, -1])
@pytest.mark.parametrize("rounds", [6, 10])
def test_random_numbers_come_from_philox(seed, rounds):
    words, numbers = launch(
        draw, (2,), jnp.zeros((32, 4), jnp.uint32), jnp.zeros((32, 4), jnp.float32), seed,
        written=[0, 1], BLOCK=16, ROUNDS=rounds,
    )  # fmt: skip
    wide = seed % 2**64 if seed >= 0 else seed % 2**32 | (2**32 - 1) << 32
    numbers = np.asarray(numbers)
    expected = np.array([philox(wide, (i, 0, 0, 0), rounds) for i in range(32)], np.uint32)
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_array_equal(numbers[:, 0], [uniform(int(w)) for w in expected[:, 0]])
    u, v = (np.array([uniform(int(w)) for w in expected[:, k]], np.float64) for k in (0, 1))
    normal = np.sqrt(-2 * np.log(np.maximum(u, 1e-7))) * np.cos(2 * np.pi * v)
    np.testing.assert_allclose(numbers[:, 1], normal, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(numbers[:, 2], expected[:, 0].view(np.int32).astype(np.float32))
    third = [philox(wide, (i, 0, 7, 0), rounds)[2] & 0xFFFF for i in range(32)]
    np.testing.assert_array_equal(numbers[:, 3], third)
