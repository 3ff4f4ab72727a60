"""The libraries that compile: how each is told where its cache is, and what JAX reports of its programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_OFF = frozenset({"0", "false", "off", "no"})

# Of JAX's events: a program is about to be looked up; it was found; it is written; and the whole of it took so long.
REQUEST = "/jax/compilation_cache/compile_requests_use_cache"
HIT = "/jax/compilation_cache/cache_hits"
WRITE = "/jax/compilation_cache/cache_misses"
SAVED = "/jax/compilation_cache/compile_time_saved_sec"
TOOK = "/jax/core/compile/backend_compile_duration"


class Library(NamedTuple):
    """A library that compiles, and how its cache is told where to be."""

    name: str
    distributions: tuple[str, ...]  # whose versions decide whether a program can be used
    folders: dict[str, str]  # variables, and the folders below ours that they get
    settings: tuple[tuple[str, str], ...] = ()  # more variables, where they are not set
    switch: str = ""  # a variable that turns the library's own cache off
    only: tuple[str, ...] = ("",)  # how the paths begin that are sent


LIBRARIES = {
    library.name: library
    for library in (
        Library(
            "jax",
            ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin"),
            {"JAX_COMPILATION_CACHE_DIR": "jax"},
            # XLA's own caches put their path into JAX's keys: in another folder nothing would be found (JAX 0.10.2).
            (("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none"),),
            switch="JAX_ENABLE_COMPILATION_CACHE",
        ),
        Library("torch", ("torch", "triton"), {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}),
        # Its folder also gets downloads; only what it compiled is kept, and the kernels that DeepGEMM compiled for it.
        Library(
            "vllm",
            ("vllm", "torch", "triton", "deep_gemm"),
            {"VLLM_CACHE_ROOT": "vllm"},
            only=("vllm/torch_compile_cache/", "vllm/deep_gemm/"),
        ),
    )
}


def folder_of(data: Path, name: str) -> Path:
    """Return where the cache of a library is, in the folder of a job's data."""
    return data / "compiled" / name


def set_variables(library: Library, folder: Path) -> bool:
    """Tell a library, by variables, where its cache is; return whether it has no other wish of the user's."""
    ours = {variable: str(folder / below) for variable, below in library.folders.items()}
    if any(os.environ.get(variable) not in {None, "", path} for variable, path in ours.items()):
        return False
    if library.switch and os.environ.get(library.switch, "").lower() in _OFF:
        return False
    os.environ.update(ours)
    for variable, value in library.settings:
        os.environ.setdefault(variable, value)
    return True


def listen(jax: ModuleType, on_event: Callable[[str], object], on_duration: Callable[[str, float], object]) -> None:
    """Have JAX report each program; it waits for what is called."""

    def event_came(event: str, **_: Any) -> None:
        on_event(event)

    def duration_came(event: str, seconds: float, **_: Any) -> None:
        on_duration(event, seconds)

    monitoring = getattr(jax, "monitoring", None) or __import__("jax.monitoring").monitoring
    monitoring.register_event_listener(event_came)
    monitoring.register_event_duration_secs_listener(duration_came)
