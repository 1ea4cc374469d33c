"""Reading and writing Gantry's files: strict, versioned, atomic.

The one place where bytes become typed values and back, for all three formats. Invariant: a
file on disk is either the old one or the whole new one, never half of it.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from inspect import cleandoc
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from profiles.errors import FormatError

T = TypeVar("T")

ALIGNMENT = 256
"""Every parameter view, buffer and boundary begins at a multiple of this many bytes."""

_LINE = 160  # a JSON value that fits into so many columns stays on one line


def align(count: int) -> int:
    """`count` bytes rounded up to ALIGNMENT."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: str | Path) -> str:
    """The hash of a file of any size; FormatError as of `read_bytes`."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unread(path, error) from None


def read_bytes(path: str | Path) -> bytes:
    """The file's bytes, or a FormatError that names it."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unread(path, error) from None


def _unread(path: str | Path, error: OSError) -> FormatError:
    why = error.strerror or type(error).__name__
    return FormatError(f"{path}: cannot be read: {why}; give the path of a file that can be")


class _Head(msgspec.Struct):
    """The format and version of a file; the rest of it is passed over."""

    format: Any = None
    version: Any = None


def head_format(data: bytes) -> Any:
    """The format that a file says it has; None where it says none."""
    try:
        return msgspec.json.decode(data, type=_Head).format
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode(data: bytes, kind: type[T], *, version: int, where: str) -> T:
    """`data` as a `kind` (a Struct with `format` and `version`); FormatError with the JSON path.

    Format and version are looked at first, so that a file of another kind is called that and
    not a list of unknown fields.
    """
    expected = kind.__name__.lower()
    other, alien = f"give a {expected} file as a command wrote it", f"this is not a {expected} file"
    what = f"{alien}: "
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != expected:
            raise FormatError(f"{where}: {alien} (format is {head.format!r}); {other}")
        if head.version != version:
            raise FormatError(
                f"{where}: {expected} version {head.version!r} is not supported; "
                f"this Gantry reads version {version}, make the file again"
            )
        what = ""
        return msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FormatError(f"{where}: {what}{why}; {other}") from None


def pretty(value: Any) -> bytes:
    """JSON with one line per op or layer: whatever fits into a line stays on it."""
    return (_layout(msgspec.to_builtins(value), "") + "\n").encode()


def _layout(value: Any, indent: str) -> str:
    flat = msgspec.json.encode(value).decode()
    if len(indent) + len(flat) <= _LINE or not isinstance(value, dict | list | tuple) or not value:
        return flat
    if isinstance(value, dict) and not any(
        isinstance(v, dict | list | tuple) for v in value.values()
    ):
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        if "stream" in value and "id" in value:  # an op
            return flat
        rows = [f"{msgspec.json.encode(k).decode()}:{_layout(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + "\n" + indent + "}"
    return "[\n" + ",\n".join(inner + _layout(v, inner) for v in value) + "\n" + indent + "]"


def check_target(path: str | Path, *inputs: str | Path) -> None:
    """FormatError when no file can be written at `path`, or `path` is one of `inputs`.

    Changes nothing: for finding out before long work instead of after it.
    """
    path = Path(path)
    try:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        reason = ""
        if path.is_dir():
            reason = "it is a folder"
        elif path.exists() and not path.is_file():
            reason = "it is a device or pipe"
        elif path.exists() and any(path.samefile(one) for one in inputs if Path(one).exists()):
            reason = "this command reads it"
        elif not folder.is_dir():
            reason = f"{folder} is not a folder"
        elif not os.access(folder, os.W_OK | os.X_OK):
            reason = f"no permission to write in {folder}"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    if reason:
        raise FormatError(f"{path}: cannot be written: {reason}; give another name")


def write_atomic(path: str | Path, data: bytes | memoryview) -> None:
    """Write to a temporary name beside `path`, then rename."""
    write_parts(path, [data])


def write_parts(path: str | Path, parts: Iterable[bytes | memoryview]) -> str:
    """Write parts one after the other as they come, and rename in the end; the sha256 of all.

    If making a part fails, the old file stays."""
    path = Path(path)
    check_target(path)
    digest = hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as stream:
                for part in parts:
                    stream.write(part)
                    digest.update(part)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FormatError(
            f"{path}: cannot be written: {error.strerror}; give another name or free the disk"
        ) from None
    return digest.hexdigest()


def json_schema(kind: Any) -> str:
    """The JSON Schema of a type of file, for other languages and editors."""
    schema = msgspec.json.schema(kind)
    for one in schema["$defs"].values():
        if text := one.get("description"):  # of msgspec before 0.23 indented as in the source
            one["description"] = cleandoc(text)
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"
