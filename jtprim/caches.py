"""The caches that jtprim keeps in memory, in one place."""

from __future__ import annotations

from jtprim.specialize import access, adapters, binder, compile, kernel, ttir


def clear_caches() -> None:
    """Empties every cache that jtprim keeps in memory. Triton's on disk and JAX's own stay."""
    for module in (access, adapters, binder, compile, kernel, ttir):
        module.clear_caches()
