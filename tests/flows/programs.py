"""Code of jobs that several tests run."""

from __future__ import annotations

# Compiling this takes XLA four seconds on a slow CPU, and on a fast one more than the second from which JAX keeps it.
COMPILES = """
    def seconds_to_compile():
        import time
        import jax
        import jax.numpy as jnp

        def program(x):
            for i in range(300):
                x = jnp.sort(jnp.sin(x) @ jnp.cos(x) + jnp.tanh(x) * i, axis=i % 2)
            return x

        lowered = jax.jit(program).lower(jnp.ones((8, 8)))
        begun = time.monotonic()
        lowered.compile()
        return time.monotonic() - begun
"""

# A module torch._inductor, which says what it finds in the folders of its caches, and leaves what is missing.
FAKE_TORCH = """
    import os, pathlib

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        file = pathlib.Path(os.environ[name], "kernel.so")
        print(name, file.read_text() if file.exists() else "compiles")
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(f"made by {os.getppid()}")
            os.utime(file, (1, 1))
"""
