"""Locks this process down and runs one Python program. Started by unit_tests.py as `python -I -S -B`; a file of its own.

    python sandbox_child.py PROGRAM FOLDER SECONDS MEMORY_BYTES STATUS_FD

Standard input holds a word. Writes to STATUS_FD: a line `isolated by ...`, then the word if the program ran to its end, so
that a program which finds the file descriptor cannot say so by itself. Layers: limits of CPU time, memory, file size and open
files; user, network, process and IPC namespaces where the kernel allows them; Landlock (only FOLDER can be written, only
Python's own files can be read) where the kernel has it; a seccomp filter that refuses sockets, new processes, other programs
and signals. Without seccomp nothing runs.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000  # user, network, process ids, IPC
CLONE_THREAD = 0x00010000
LARGEST_FILE = 16 << 20
OPEN_FILES = 64

# refused system calls by machine: (socket, socketpair, connect, bind, execve, execveat, ptrace, process_vm_readv,
# process_vm_writev, kill, tkill, tgkill, rt_sigqueueinfo, pidfd_send_signal, unshare, setns, mount, keyctl, bpf,
# io_uring_setup, userfaultfd, perf_event_open, prlimit64, fork, vfork)
MACHINES = {
    "x86_64": (
        0xC000003E,
        56,
        (41, 53, 42, 49, 59, 322, 101, 310, 311, 62, 200, 234, 129, 424, 272, 308, 165, 250, 321, 425, 323, 298, 302, 57, 58),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        (198, 199, 203, 200, 221, 281, 117, 270, 271, 129, 130, 131, 138, 424, 97, 268, 40, 219, 280, 425, 282, 241, 261),
    ),
}
CLONE3 = 435
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
ALL_ACCESS, READ_AND_EXECUTE, READ_FILE = 0x1FFF, 0b1101, 0b0100


def limit(seconds, memory):
    for name, value in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def namespaces():
    """Moves to new namespaces, and into a new process that is the only one there. False where the kernel refuses."""
    if LIBC.unshare(NEW_NAMESPACES) != 0:
        return False
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: ends with its parent, and the namespace with it
    return True


def landlock(folder):
    """Restricts files to `folder` and Python's own. False where the kernel has no Landlock."""
    handled = struct.pack("=Q", ALL_ACCESS)
    rules = LIBC.syscall(LANDLOCK_CREATE, handled, len(handled), 0)
    if rules < 0:
        return False
    readable = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        "/usr",
        "/lib",
        "/lib64",
        "/etc/ld.so.cache",
        "/dev/null",
        "/dev/urandom",
        "/dev/zero",
    }
    for path, access in [(folder, ALL_ACCESS), *((path, READ_AND_EXECUTE) for path in sorted(readable))]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        access = access if Path(path).is_dir() else READ_FILE | (2 if path == "/dev/null" else 0)
        LIBC.syscall(LANDLOCK_ADD, rules, 1, struct.pack("=Qi", access, place), 0)
        os.close(place)
    restricted = LIBC.syscall(LANDLOCK_RESTRICT, rules, 0) == 0
    os.close(rules)
    return restricted


def seccomp():
    """Refuses the system calls of MACHINES. False for an unknown machine or a kernel without seccomp."""
    machine = MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8:
        return False
    architecture, clone, refused = machine
    load, equal, above, set_bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, unknown, allow, kill = 0x00050001, 0x00050026, 0x7FFF0000, 0x80000000  # EPERM, ENOSYS, allow, kill the process
    code = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),
        (above, 0, 1, 0x40000000),
        (give, 0, 0, refuse),  # the x32 numbers of the same calls
        (equal, 0, 1, CLONE3),
        (give, 0, 0, unknown),  # libc then uses clone, whose flags can be read
        (equal, 0, 4, clone),
        (load, 0, 0, 16),
        (set_bits, 0, 1, CLONE_THREAD),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    for number in refused:
        code += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    code.append((give, 0, 0, allow))
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    program = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    return LIBC.prctl(22, 2, header, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def main():
    program, folder, seconds, memory, status = sys.argv[1:]
    status, word = int(status), os.read(0, 64)
    source = Path(program).read_text(encoding="utf-8", errors="replace")
    layers = ["namespaces"] if namespaces() else []
    limit(float(seconds), int(memory))
    if LIBC.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS
        os._exit(3)
    if landlock(folder):
        layers.append("landlock")
    if not seccomp():
        os._exit(3)
    os.write(status, f"isolated by {', '.join([*layers, 'seccomp'])}\n".encode())
    sys.argv[:] = ["answer.py"]
    try:
        exec(compile(source, "answer.py", "exec"), {"__name__": "__main__"})
    except BaseException:
        os._exit(1)
    os.write(status, word)
    os._exit(0)


if __name__ == "__main__":
    main()
