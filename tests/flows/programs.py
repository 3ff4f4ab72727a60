"""Code of jobs that several tests run."""

from __future__ import annotations

# Returns whether JAX found a program. Those that took XLA a second are kept by themselves: 120 steps take about two on
# a quiet core, and there are larger programs for faster ones.
# Says whether a program is found that compiles for a second, by JAX's own clock: the first of these on this machine.
COMPILES = """
    def is_found(*sizes):
        import os
        import pathlib
        import jax
        import jax.numpy as jnp
        from kinetic._runner.worker.compilers import whole_seconds

        events = []
        jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
        x = jnp.ones((8, 8))

        def kept():
            files = pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or "off").glob("jit_program*-cache")
            return {file for file in files if whole_seconds(file) != 0}

        for size in sizes or (10, 40, 120, 300, 700):
            def program(x):
                for i in range(size):
                    x = jnp.sort(jnp.sin(x) @ jnp.cos(x) + jnp.tanh(x) * i, axis=i % 2)
                return x

            lowered = jax.jit(program).lower(x)
            events.clear()
            before = kept()  # also what was fetched
            lowered.compile()
            if "/jax/compilation_cache/cache_hits" in events:
                return True
            if kept() - before:
                return False
        return False
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
