"""C sources of this package, compiled for this CPU at their first use and kept in a cache.

The cache is `$XDG_CACHE_HOME/gantry` or `~/.cache/gantry`. A library's name is a hash of all that
went into it, so that a new source, compiler or CPU makes a new one.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = "-std=c11 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp"


class Unavailable(Exception):
    """Why compiled code cannot be used here, in one line."""

    def __init__(self, why: object) -> None:
        super().__init__(" ".join(str(why).split()))


def load(source: Path) -> ctypes.CDLL:
    """The library made from `source`; Unavailable when it cannot be made or loaded."""
    try:
        return ctypes.CDLL(str(_compiled(source)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise Unavailable(error) from error


def _compiled(source: Path) -> Path:
    """The library, from the cache or put there; by rename, so that it is whole or absent."""
    compiler = _compiler()
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=60, check=True)
    made_from = [source.read_bytes(), version.stdout, _cpu(), FLAGS.encode()]
    name = hashlib.sha256(b"\0".join(made_from)).hexdigest()[:32]
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(root) / "gantry" / f"{source.stem}-{name}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        files = ["-o", str(made), str(source)]
        command = [*compiler, *FLAGS.split(), "-fPIC", "-shared", *files, "-lm"]
        done = subprocess.run(command, capture_output=True, timeout=120)
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-400:]
            raise Unavailable(f"{compiler[0]} failed with {done.returncode}: {said}")
        made.replace(target)
    return target


def _compiler() -> list[str]:
    """The C compiler's command: $CC, or the first of the usual names."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    names = ("cc", "gcc", "clang")
    for path in map(shutil.which, names):
        if path:
            return [path]
    raise Unavailable(f"no C compiler: none of {', '.join(names)} is on PATH and CC is not set")


def _cpu() -> bytes:
    """What the machine's instructions are known by: code for one CPU may not run on another."""
    about = [platform.machine(), platform.processor()]
    info = Path("/proc/cpuinfo")
    if info.exists():
        first = info.read_text().split("\n\n")[0].splitlines()
        about += [line for line in first if line.startswith(("model name", "flags", "Features"))]
    return "\n".join(about).encode()
