"""Runs one program so that nothing it starts outlives it: `python -I -S jail.py SOCKET MEGABYTES PROGRAM ARGV…`, a process of its own.

If the system allows it, all processes run in a process-id namespace. Its first process cannot be killed from inside,
and the system ends all others with it. Otherwise this process is the subreaper, the parent of all orphans, and ends all
its descendants. A program can kill it there: then the worker, the next subreaper, ends the orphans (`end_strays`).
SOCKET is the file descriptor of a socket to the worker: it reports the program's end. When the worker closes the
socket, or ends, all processes are ended. This module imports nothing of Perdure, so that it starts in some
milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Collection

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_KEPT_CAPABILITIES = (0, 1, 3, 4)
"""Capabilities that a worker that is root keeps, for files. Others would allow a program to read the worker's memory,
or to leave the jail.
"""
_LAST_CAPABILITY = 63
_RLIMIT_LOCKS, _MARK = 10, 1 << 40
"""A mark: Linux has not enforced this limit since 2.4. All processes of a jail inherit it, may lower it and cannot
remove it.
"""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError):  # only Linux has it; other systems have a process group
        _libc.prctl(option, value, 0, 0, 0)


def main(control: int, megabytes: int, program: str, argv: list[str]) -> None:
    os.set_inheritable(control, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    walled = _own_namespace()
    if not walled:
        _prctl(_PR_SET_DUMPABLE, 0)  # the program must not make the jail report success
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        if walled:
            _first(control, megabytes, program, argv)
        _run(megabytes, program, argv)
    for fd in (0, 1, 2):
        os.close(fd)  # a reader of the program's output sees its end when the last process has ended
    status = _wait(control, child, woken)
    _end_all(child)
    if status is not None and not walled:
        with contextlib.suppress(OSError):
            os.write(control, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _own_namespace() -> bool:
    """Whether the children of this process run in their own process-id namespace."""
    if not hasattr(_libc, "unshare"):
        return False
    if _libc.unshare(_CLONE_NEWPID) == 0:
        return True
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID) != 0:
        return False
    with contextlib.suppress(OSError):
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return True


def _first(control: int, megabytes: int, program: str, argv: list[str]) -> None:
    """Run the first process of the namespace: it ends when the program does, and all others with it."""
    child = os.fork()
    if child == 0:
        _run(megabytes, program, argv)
    for fd in (0, 1, 2):
        os.close(fd)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                os.write(control, str(code).encode())
            os._exit(0)


def _run(megabytes: int, program: str, argv: list[str]) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        limits = (resource.RLIMIT_AS, megabytes << 20), (resource.RLIMIT_CORE, 0), (_RLIMIT_LOCKS, _MARK)
        for limit, most in limits:
            with contextlib.suppress(ValueError, OSError):  # the present limit is lower
                resource.setrlimit(limit, (most, most))
        for capability in range(_LAST_CAPABILITY + 1):
            if capability not in _KEPT_CAPABILITIES:
                _prctl(_PR_CAPBSET_DROP, capability)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        os.execv(program, argv)
    except OSError as error:
        os.write(2, f"{program} cannot be run: {os.strerror(error.errno or 0)}\n".encode())
    finally:
        os._exit(127)


def _wait(control: int, child: int, woken: int) -> int | None:
    """Return the child's status once it has ended; `None` if the worker closes the socket first."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == child:
                    return found[1]
        readable, _, _ = select.select([control, woken], [], [])
        if control in readable:
            return None
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)


def _end_all(child: int) -> None:
    """Stop all descendants until no new one is found: a stopped process starts nothing. Then kill and reap them."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    _stop(_descendants)
    while True:
        for pid in _descendants():
            _send(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def adopt_orphans() -> None:
    """Become the parent of orphans of this process's children, for `end_strays`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_strays(jails: Collection[int]) -> None:
    """End the processes of jails that died before they could do so; `jails` are the jails that still run.

    A process that ended as an orphan of this one stays a zombie until then.
    """

    def strays() -> set[int]:
        return {pid for pid in _descendants(jails) if _is_marked(pid)}

    _stop(strays)
    while found := strays():
        for pid in found:
            _send(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def _is_marked(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/limits") as file:
        return any(line.startswith("Max file locks") and line.split()[4] != "unlimited" for line in file)
    return False


def _stop(find: Callable[[], set[int]]) -> None:
    stopped: set[int] = set()
    while new := find() - stopped:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        stopped |= new


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(spared: Collection[int] = ()) -> set[int]:
    """Return the descendants of this process, orphans included, without the `spared` ones and their descendants."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found - set(spared):
        found |= more
    return found - {os.getpid()}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
