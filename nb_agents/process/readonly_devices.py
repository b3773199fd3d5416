"""Makes the machine's device files read-only for a program that runs as root.

Programs in a sandbox use the machine's real ``/dev/null`` and similar devices. Root owns them and
could change their permissions, and a machine without a usable ``/dev/null`` does not work.
Bubblewrap can't mount them read-only without preventing their use. This script therefore remounts
them read-only first, in a mount namespace that ends with the program. Reading from and writing to
the devices still works.

`nb_agents.process.bubblewrap` runs this file as a script, with the standard library only, and only
as root: no other user owns a device.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SHOWN = ("null", "zero", "full", "random", "urandom", "tty")
"""The device files that bubblewrap's ``--dev`` shows. Source: bwrap(1)."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 32, 4096, 16384, 1 << 19
# Mount flags that must not be cleared in a user namespace.
_KEPT = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


def main(command: list[str]) -> None:
    """Replace this process with a program that sees read-only device files. Exits on errors.

    Args:
        command: The program and its arguments.
    """
    try:
        _protect()
    except OSError as exc:
        sys.exit(f"bwrap: device files can't be made read-only: {exc.strerror}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, but the program must not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as exc:
        sys.exit(f"bwrap: the program can't be run: {exc.strerror}")


def _protect() -> None:
    _enter_namespace()
    _mount(None, "/", _MS_REC | _MS_SLAVE)  # keep these mounts from propagating to the host
    for name in SHOWN:
        device_path = f"/dev/{name}"
        if os.path.exists(device_path):
            _mount(device_path, device_path, _MS_BIND)
            flags = os.statvfs(device_path).f_flag & _KEPT
            _mount(None, device_path, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _enter_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNS) == 0:
        return
    # Root in a container may do this only in a new user namespace.
    _check_result(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(source: str | None, target: str, flags: int) -> None:
    source_bytes = os.fsencode(source) if source else None
    _check_result(_libc.mount(source_bytes, os.fsencode(target), None, ctypes.c_ulong(flags), None))


def _check_result(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
