"""Benchmarks: `python -m benchmarks.run` measures what this machine has."""
