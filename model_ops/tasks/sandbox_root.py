"""Root folder and job folders of the sandbox's server, in namespaces of its own. Imported by sandbox_child.py.

Mounts end with the server, and nobody else sees them. Where the machine forbids them, a job's folder is a temporary one."""

import contextlib
import ctypes
import fcntl
import itertools
import os
import tempfile
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534
MOST_BYTES, MOST_FILES = 32 << 20, 256
"""Of a job's folder."""
FILES = [
    Path(name)
    for name in ["/usr/share/zoneinfo", "/usr/lib/locale", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/zero"]
]
"""What Python reads beside its own files and libraries."""
MOUNTS, USER = 0x00020000, 0x10000000
NO_SUID, NO_DEVICES, BIND, RECURSIVE, PRIVATE, DETACH = 2, 4, 1 << 12, 1 << 14, 1 << 18, 2


def libraries():
    """Shared libraries of Python's own modules: a forked process loads them all, and reads its map of memory."""
    report, maps = os.pipe()
    if os.fork() == 0:
        try:
            for name in (*Path(os.__file__).parent.glob("lib-dynload/*.so"), "libgcc_s.so.1"):  # which ends threads
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(name))
            with open("/proc/self/maps") as lines, os.fdopen(maps, "w") as pipe:  # noqa: PTH123
                pipe.writelines({line.split(maxsplit=5)[-1] for line in lines if ".so" in line})
        finally:
            os._exit(0)
    os.close(maps)
    with os.fdopen(report) as lines:
        paths = {Path(line.rstrip("\n")) for line in lines}
    os.wait()
    return paths


def mount(kind, place, flags, options=None):
    if LIBC.mount(os.fsencode(kind), os.fsencode(place), b"tmpfs", flags, options) != 0:
        raise OSError(f"no mount at {place}")


def enter_own_root(library_files):
    """Gives this process a root that has Python, its libraries and /jobs. Raises OSError where that is forbidden."""
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(MOUNTS if user == 0 else MOUNTS | USER) != 0:
        raise OSError("no namespace of mounts")
    if user != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)
    folders = {path.parent for path in library_files}
    folders |= {Path("/", *path.parts[2:]) for path in folders if path.parts[1] == "usr"}  # names by links: /lib is /usr/lib
    paths = [*FILES, Path("/dev/null"), *sorted(folders), Path(os.__file__).parent]
    mount("none", "/", RECURSIVE | PRIVATE)
    sources = [(path, os.open(path, os.O_PATH)) for path in paths if path.exists()]
    mount("tmpfs", "/tmp", NO_SUID | NO_DEVICES, b"mode=755")
    for path, source in sources:
        place = Path("/tmp", *path.parts[1:])
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        mount(f"/proc/self/fd/{source}", place, BIND | RECURSIVE)
        os.close(source)
    os.mkdir("/tmp/jobs")  # noqa: PTH102
    os.chdir("/tmp")
    if LIBC.pivot_root(b".", b".") != 0 or LIBC.umount2(b".", DETACH) != 0:
        raise OSError("no other root")
    os.chdir("/")


def has_own_root(library_files):
    """Whether this process has entered a root of its own. A forked process tries first: half a root would be none."""
    trial = os.fork()
    if trial == 0:
        try:
            enter_own_root(library_files)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(trial, 0)[1] != 0:
        return False
    enter_own_root(library_files)
    return True


@contextlib.contextmanager
def job_folder(own_root):
    """An empty folder for one job. In an own root it is a file system, which later jobs use again."""
    if not own_root:
        with tempfile.TemporaryDirectory(prefix="millrace-tests-", dir=os.environ["TMPDIR"]) as folder:
            with contextlib.suppress(OSError):  # not root, or a container's root that may not: then the job's user is the same
                os.chown(folder, NOBODY, NOBODY)
            yield folder
        return
    for folder in (f"/jobs/{number}" for number in itertools.count()):
        with open(f"{folder}.lock", "w") as lock:  # noqa: PTH123
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not os.path.ismount(folder):
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103
                options = f"size={MOST_BYTES},nr_inodes={MOST_FILES},mode=777"
                mount("tmpfs", folder, NO_SUID | NO_DEVICES, options.encode())
            empty(folder)  # of what a job left whose supervisor was killed
            yield folder
            return empty(folder)


def empty(folder):
    for file in os.scandir(folder):
        os.unlink(file)  # noqa: PTH108
