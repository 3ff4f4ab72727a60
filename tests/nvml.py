"""A machine with two GPUs that others use, as NVIDIA's management library would tell it: of the first 70 GiB."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
static int open_count;
int nvmlInit_v2(void) { if (getenv("DRIVER_HANGS")) pause(); open_count++; return getenv("NO_DRIVER") ? 9 : 0; }
int nvmlShutdown(void) { return --open_count ? 1 : 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
  if (index > 1) return 2;
  *device = (void *)(0x7000000000000ull + index); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  if (strcmp(uuid, "GPU-second")) return 6;
  *device = (void *)0x7000000000001ull; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
  strncpy(name, (unsigned long long)device & 1 ? "Second GPU" : "First GPU", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *found) {
  found->total = 80ull << 30; found->used = ((unsigned long long)device & 1) ? 5ull << 30 : 70ull << 30;
  found->free = found->total - found->used; return open_count ? 0 : 1; }
int nvmlDeviceGetUtilizationRates(void *device, utilization_t *found) {
  if ((unsigned long long)device & 1) return 3;  /* not supported, as of a part of a GPU */
  found->gpu = 97; found->memory = 12; return 0; }
"""


def built(folder: Path) -> Path:
    """Compile the library into a folder, under the name by which the driver's own is found."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (folder / "nvml.c").write_text(_SOURCE)
    made = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(folder / "nvml.c")], check=True)
    return made
