"""Triton's tutorial kernels in JAX programs: `python -m examples.demo` runs them."""
