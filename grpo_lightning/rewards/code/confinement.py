"""What the system is asked to keep a model's code from: name spaces, limits, rights, and the end of all its processes.

Standard library only: this runs in the small process that runs the code, not in the trainer.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

FOLDER_LIMIT = 64 << 20
"""Bytes in one file; with name spaces, in the whole working folder."""
MOST_PROCESSES = 32
"""Processes of one case at a time."""
LINUX = sys.platform == "linux"

# Of <linux/sched.h>, <linux/mount.h> and <linux/prctl.h>.
_NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000  # user, mount, PID, network, IPC
_PRIVATE, _RECURSIVE, _NO_SUID, _NO_DEVICES, _NO_EXEC, _READ_ONLY = 1 << 18, 1 << 14, 2, 4, 8, 1
_MOUNT_SETATTR, _AT_CWD, _AT_RECURSIVE = 442, -100, 0x8000
DEATH_SIGNAL, DUMPABLE, SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38
_SECCOMP, _FILTER, _IO_URING_SETUP = 22, 2, 425
_CAPABILITIES_V3 = 0x20080522


def prctl(option: int, value: int, other: int = 0) -> int:
    """Linux' call of that name; nothing elsewhere."""
    if LINUX:
        numbers = [ctypes.c_ulong(number) for number in (value, other, 0, 0)]
        return int(_library().prctl(option, *numbers))
    return -1


@functools.cache
def _library() -> ctypes.CDLL:
    """The C library; opened once, not in every child."""
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_name_spaces(channel: socket.socket, folder: str) -> None:
    """Go on as the first process of new name spaces; the process that was started stays outside and waits.

    Args:
        channel: to the trainer; closed outside.
        folder: the working folder: inside, an empty file system in memory that goes with the name spaces.

    Raises:
        OSError: if the system does not allow it.
    """
    libc = _library()
    user, group = os.getuid(), os.getgid()
    _checked(libc.unshare(_NEW_NAMESPACES), "unshare")
    for name, text in {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    first = os.fork()
    if first:
        channel.close()
        prctl(DEATH_SIGNAL, signal.SIGKILL)  # the change of user has cleared it
        os.waitpid(first, 0)
        os._exit(0)
    prctl(DEATH_SIGNAL, signal.SIGKILL)  # the kernel ends a PID name space with its first process
    mount = libc.mount
    _checked(mount(None, b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None), "mount /")
    # struct mount_attr: what to set, what to clear, propagation, user name space. Linux 5.12; before, writes are free.
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    libc.syscall(_MOUNT_SETATTR, _AT_CWD, b"/", _AT_RECURSIVE, attributes, ctypes.c_size_t(32))
    plain = _NO_SUID | _NO_DEVICES
    size = f"size={FOLDER_LIMIT},mode=700".encode()
    _checked(mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(plain), size), "mount tmpfs")
    mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(plain), size)
    if mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(plain | _NO_EXEC), None) != 0:
        # Containers that mask parts of /proc refuse a new one; the old one would show the trainer's environment.
        _checked(mount(b"tmpfs", b"/proc", b"tmpfs", ctypes.c_ulong(plain | _READ_ONLY), b"size=4k"), "mount /proc")


def descendants() -> list[int]:
    """Processes below this one, orphans included: on Linux it adopts them."""
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting and len(found) < 10_000:
        tasks = f"/proc/{waiting.pop()}/task"
        with contextlib.suppress(OSError):
            for task in os.listdir(tasks):
                with open(f"{tasks}/{task}/children") as file:
                    children = [int(pid) for pid in file.read().split()]
                found += children
                waiting += children
    return found


def kill_all(group: int, *, name_spaces: bool) -> None:
    """End every process of a case, whatever sessions and parents they gave themselves, and reap them.

    Args:
        group: process group of the case's first process.
        name_spaces: this process has entered its own.
    """
    # -1 means every process in sight: only as number 1 of a PID name space of our own is that the case alone.
    whole = name_spaces and LINUX and os.getpid() == 1
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL) if whole else os.killpg(group, signal.SIGKILL)
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def restrict(job: dict[str, Any], *, hidden: bool) -> None:
    """Set the limits of a case's child and give up what rights the name spaces gave it; there is no way back.

    Args:
        job: of the case.
        hidden: from other processes of the same user, which may not read its memory and files.
    """
    prctl(DEATH_SIGNAL, signal.SIGKILL)
    seconds = int(job["time_limit"]) + 2
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: FOLDER_LIMIT,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_AS: job["memory_limit"],
    }
    if job["name_spaces"] and _kernel() >= (5, 14):  # of this name space alone; before, of the user's whole machine
        limits[resource.RLIMIT_NPROC] = 2 * MOST_PROCESSES
    for kind, value in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS knows some of them by name only
            resource.setrlimit(kind, (value, value))
    if not LINUX:
        return
    prctl(DUMPABLE, int(not hidden))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, the kernel's choice shall not be the trainer
    if job["name_spaces"]:
        header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
        _library().capset(header, nothing)
    prctl(_NO_NEW_PRIVILEGES, 1)
    if not job["name_spaces"]:
        _forbid_network()


def _forbid_network() -> None:
    """No sockets but local ones, by a filter of system calls (seccomp); inherited by everything that is started."""
    known = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}.get(os.uname().machine)
    if known is None:
        return
    architecture, new_socket = known
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    lines = [  # operation, steps to skip if true and if false, operand
        (load, 0, 0, 4),  # the architecture of the call
        (equal, 0, 6, architecture),
        (load, 0, 0, 0),  # its number
        (at_least, 4, 0, 0x40000000),  # of x86's second table
        (equal, 3, 0, _IO_URING_SETUP),  # which makes sockets as well
        (equal, 0, 3, new_socket),
        (load, 0, 0, 16),  # the family of addresses
        (equal, 1, 0, socket.AF_UNIX),
        (give, 0, 0, 0x00050000 | errno.EACCES),
        (give, 0, 0, 0x7FFF0000),  # allowed
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    prctl(_SECCOMP, _FILTER, ctypes.addressof(program))


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
