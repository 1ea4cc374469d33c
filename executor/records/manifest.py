"""Manifests of checkpoints: dtype, shape and sha256 of every tensor, and a sha256 of all else.

A manifest lies in the file that it is of, so that the two are written together or not at all.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

_THREADS = min(8, os.cpu_count() or 1)  # hashing leaves the interpreter to others


def manifest_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a checkpoint's content: plain data."""
    found = dict(tensors(content))
    with ThreadPoolExecutor(_THREADS) as pool:
        prints = pool.map(_print, found.values())
        printed = dict(zip(found, prints, strict=True))
    return {"tensors": printed, "rest": sha256(_text(content).encode()).hexdigest()}


def differences(content: Mapping[str, Any], manifest: object) -> list[str]:
    """A line for everything in the content that is not as its manifest says."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("tensors"), dict):
        return ["its manifest is damaged"]
    mine, written = manifest_of(content), manifest["tensors"]
    lines = [f"{name}: is missing" for name in written if name not in mine["tensors"]]
    lines += [f"{name}: is not in its manifest" for name in mine["tensors"] if name not in written]
    named = bool(lines)
    for name, found in mine["tensors"].items():
        if found != written.get(name, found):
            lines.append(f"{name}: {_changed(found, str(written[name]))}")
    if not named and mine["rest"] != manifest.get("rest"):
        lines.append("its names, numbers or settings are not those that were written")
    return lines


def _changed(found: str, written: str) -> str:
    (form, digest), (old_form, _, old_digest) = found.rsplit(" ", 1), written.rpartition(" ")
    if form != old_form:
        return f"is {form}, and was written as {old_form}"
    return f"its sha256 is {digest[:12]}..., and was {old_digest[:12]}... when it was written"


def tensors(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dicts and lists, by their path."""
    if isinstance(value, Tensor):
        yield " ".join(path), value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from tensors(one, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from tensors(one, (*path, str(number)))


def _print(tensor: Tensor) -> str:
    """`float32 [16, 4] 9f86d0...`: dtype, shape, and the sha256 of the values in their order."""
    form = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_quantized:
        return f"{form} -"
    plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
    return f"{form} {sha256(plain.reshape(-1).view(torch.uint8).numpy().data).hexdigest()}"


def _text(value: Any) -> str:
    """All but the tensors, the same before it is written and after it is read."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key!r}:{_text(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, set | frozenset):
        return f"<{','.join(sorted(map(repr, value)))}>"
    return repr(value)
