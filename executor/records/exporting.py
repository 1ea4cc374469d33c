"""Trained models as folders that other libraries read.

    exports/mine/   of Hugging Face models what `save_pretrained` writes: safetensors (in several
                    files with an index if need be), config.json, of PEFT models the adapter; and
                    the tokenizer's files where the base has some. Of others model.safetensors.

A folder is written beside its place and then renamed, so that none is half written.
"""

import io
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from inspect import signature
from pathlib import Path

from torch import nn

from executor.errors import RunError, UsageError, one_line
from executor.outputs import make_folder, part_of, try_folder
from executor.records.checkpoint import alone

_SHARD = "5GB"  # of a model's files, at most
_WEIGHTS = "*.safetensors"
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "chat_template.jinja", "preprocessor_config.json"),
)


def try_exports(folder: Path, sizes: Mapping[str, int]) -> None:
    """UsageError unless tasks of these names, with so many bytes at least, can be written in the
    folder, where nothing but earlier exports may have their names."""
    make_folder(folder)
    for target in (folder / name for name in sizes):
        empty = not target.exists() or (target.is_dir() and not any(target.iterdir()))
        if not empty and not any(target.glob(_WEIGHTS)):
            raise UsageError(
                f"{target}: cannot be written: it is there already and holds no saved model; give "
                "another folder"
            )
    try_folder(folder, {f"{name}.try": size for name, size in sizes.items()})


def export(model: nn.Module, target: Path) -> None:
    """Write the model as the folder `target`, in the place of what an earlier export has left
    there. RunError where that fails, with what was there left as it was."""
    part = part_of(target)
    try:
        _clear(part)
        part.mkdir(parents=True)
        _write(model, part)
        for path in part.rglob("*"):
            _sync(path)
        _put(part, target)
    except Exception as error:  # of a full disk every library says something else
        _clear(part)
        raise RunError(f"{target}: cannot be written: {one_line(error)}") from error


def _write(model: nn.Module, folder: Path) -> None:
    """Write the model's files, by the library that it is from."""
    from safetensors.torch import save_model

    for parameter in model.parameters():  # libraries take what shares a storage for tied
        parameter.data = alone(parameter.data, {})
    save = getattr(model, "save_pretrained", None)
    if save is None:
        save_model(model, str(folder / "model.safetensors"))
        return
    sized = {"max_shard_size": _SHARD} if "max_shard_size" in signature(save).parameters else {}
    with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):  # a bar
        save(str(folder), **sized)
    for file in _tokenizer(getattr(getattr(model, "config", None), "name_or_path", "")):
        shutil.copyfile(file, folder / file.name)


def _tokenizer(name: str) -> Iterator[Path]:
    """The files of the tokenizer beside a base: in its local folder, or in the hub's cache."""
    if not name:
        return
    from huggingface_hub import try_to_load_from_cache

    for file in _TOKENIZER:
        found = Path(name) / file if Path(name).is_dir() else try_to_load_from_cache(name, file)
        if isinstance(found, str | Path) and Path(found).is_file():
            yield Path(found)


def _put(part: Path, target: Path) -> None:
    """Give the folder its name, in the place of what has it."""
    old = target.with_name(f"{target.name}.old")
    _clear(old)
    if target.exists():
        target.rename(old)
    part.rename(target)
    _sync(target.parent)
    _clear(old)


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
