"""Kernels from published packages, launched by the packages' own code and compared with PyTorch.

`python -m tests.collections` runs them and writes docs/collections.md; `make collections` does so in an
environment of its own, since they need PyTorch and the packages. Pytest collects nothing here.
"""
