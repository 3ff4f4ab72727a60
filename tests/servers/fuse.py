"""A file system that is mounted and never answers, as of a bucket behind a network that is down: ``fuse.py FOLDER``.

Whoever looks into the folder waits in the kernel, where no signal reaches it, until this process is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_DETACH = 2
_LARGEST = 1 << 17  # of a request


def main(folder: str) -> None:
    """Mount it, say so in a line, and read what is asked."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(os.path.abspath(folder)), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), f"mounting at {folder}: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    begin = os.read(device, _LARGEST)  # FUSE_INIT, the only one that gets an answer
    answer = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 1 << 16, 1, 0, 0, 0)
    os.write(device, struct.pack("=Ii", 16 + len(answer), 0) + begin[8:16] + answer)
    while True:
        os.read(device, _LARGEST)


def may_mount() -> bool:
    """Return whether this process may mount one."""
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """Mount one at a new folder while a block runs; it is served by a process."""
    folder.mkdir()
    words = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "mounted\n"
            yield folder
        finally:
            server.kill()
            ctypes.CDLL(None).umount2(os.fsencode(folder), _DETACH)


if __name__ == "__main__":
    main(sys.argv[1])
