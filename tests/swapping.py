"""An attacker that continuously swaps two names in a directory, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# renameat2(…, RENAME_EXCHANGE), macOS: renameatx_np(…, RENAME_SWAP). Source: their manual pages.
_SWAP = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
swap, flag, cwd = (
    (libc.renameatx_np, 2, -2) if sys.platform == "darwin" else (libc.renameat2, 2, -100)
)
names = [(a.encode(), b.encode()) for a, b in zip(sys.argv[1::2], sys.argv[2::2])]
for a, b in names:
    if swap(cwd, a, cwd, b, flag):
        sys.exit(f"can't swap: error {ctypes.get_errno()}")
print("swapping", flush=True)
while True:
    for a, b in names:
        swap(cwd, a, cwd, b, flag)
"""


@contextmanager
def swapping(*pairs: tuple[Path, Path]) -> Iterator[None]:
    """Let the names of each pair be exchanged, atomically, as fast as the machine can."""
    names = [str(name) for pair in pairs for name in pair]
    process = subprocess.Popen([sys.executable, "-c", _SWAP, *names], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"swapping\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
