"""Workloads of Hugging Face transformers by name: `hf:gpt2-medium?task=causal-lm&batch=8&seq=512`.

A name on the hub or a local folder with a config. Weights are random unless the folder has some;
batches are made up, the same for the same step, and the model computes its own loss. What a
profile says about time and memory does not depend on either. With `longest` there are made-up
documents of every length instead, several of which share a microbatch.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

import numpy as np
import torch
from msgspec import ValidationError, convert
from msgspec.structs import asdict
from torch import Tensor, nn
from torch.optim import AdamW

from executor.errors import WorkloadError, one_line
from executor.workload.huggingface.documents import causal_lm
from executor.workload.task import Task
from profiles.schema import Count, Positive, Precision, Struct

PREFIX = "hf:"
_DOCUMENTS, _SPREAD = 2048, (-2.0, 1.0)  # made up at most; the logarithms of their lengths
_MASKED = 0.15  # of the tokens, as BERT was trained
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

Batch = dict[str, Tensor]
Kind = Literal[
    "causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification", "image-classification"
]


class Options(Struct, frozen=True):
    """Settings of a training: `task` is a key of TASKS, `seq` tokens in a row; or documents of up
    to `longest` tokens."""

    task: Kind = "causal-lm"
    batch: Positive = 8
    seq: Positive = 128
    longest: Count = 0
    steps: Positive = 100
    lr: float = 1e-4
    seed: int = 0
    precision: Precision = "fp32"


def ref(name: str, options: Options) -> str:
    """The workload reference that carries everything: `hf:name?task=...`."""
    return f"{PREFIX}{name}?{urlencode(asdict(options))}"


def completed(text: str, asked: Mapping[str, str]) -> str:
    """A reference that carries everything: what `text` says and what is asked beside it."""
    return ref(*parse(f"{text}{'&' if '?' in text else '?'}{urlencode(asked)}"))


def parse(text: str) -> tuple[str, Options]:
    """Name and options of a reference; WorkloadError for an unknown or a bad one."""
    name, _, query = text.removeprefix(PREFIX).partition("?")
    if not name:
        raise WorkloadError(f"{text}: the name of a model or a folder comes after {PREFIX}")
    try:
        return name, convert(dict(parse_qsl(query, keep_blank_values=True)), Options, strict=False)
    except ValidationError as error:
        raise WorkloadError(
            f"{text}: {error}; options are {', '.join(Options.__struct_fields__)}, task is one of "
            f"{', '.join(TASKS)}, precision one of {', '.join(get_args(Precision))}"
        ) from None


def load(text: str) -> list[Task]:
    """The one task of a reference.

    WorkloadError when transformers is not installed or knows no such model.
    """
    name, options = parse(text)
    try:
        import transformers
    except ImportError as error:
        raise WorkloadError(f'{text}: needs transformers; pip install "gantry[hf]"') from error
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        config = transformers.AutoConfig.from_pretrained(name)
    except Exception as error:
        raise WorkloadError(f"{text}: no config of {name}: {one_line(error)}") from error
    _prepare(text, config, options)
    called = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name).name).strip("-") or "model"
    model = partial(_model, getattr(transformers, TASKS[options.task]), name, config)
    settings: dict[str, Any] = {
        "optimizer": partial(AdamW, lr=options.lr, fused=True),
        "steps": options.steps,
        "seed": options.seed,
        "precision": options.precision,
    }
    if options.longest:
        documents = _MadeUp(*_tokens(config), options)
        return [causal_lm(called, model, documents, batch=options.batch, **settings)]
    data = partial(_batch, config, options)
    return [Task(name=called, model=model, data=data, loss=None, **settings)]


def _model(kind: Any, name: str, config: Any) -> nn.Module:
    if _weights(name):
        loaded: nn.Module = kind.from_pretrained(name, config=config, dtype=torch.float32)
        return loaded
    made: nn.Module = kind.from_config(config, dtype=torch.float32)
    return made


def _weights(name: str) -> list[Path]:
    return [path for pattern in _WEIGHTS for path in sorted(Path(name).glob(pattern))]


def _prepare(text: str, config: Any, options: Options) -> None:
    """Give what training needs; WorkloadError for rows that are too long."""
    inner = config.get_text_config()
    text_task = options.task != "image-classification"
    if options.longest and options.task != "causal-lm":
        raise WorkloadError(f"{text}: longest is for causal-lm; leave it out for {options.task}")
    most = getattr(inner, "max_position_embeddings", None)
    asked, tokens = ("longest", options.longest) if options.longest else ("seq", options.seq)
    if text_task and isinstance(most, int) and 0 < most < tokens:
        raise WorkloadError(f"{text}: {asked} is {tokens}, the model takes {most} at most")
    if text_task and not isinstance(getattr(inner, "vocab_size", None), int):
        raise WorkloadError(f"{text}: the model has no vocabulary, which {options.task} needs")
    if getattr(inner, "pad_token_id", None) is None and options.task == "sequence-classification":
        inner.pad_token_id = 0


def _batch(config: Any, options: Options, step: int) -> Batch:
    """The batch of a step. Rows of tokens are without the one for padding where that is the
    first."""
    generator = torch.Generator().manual_seed(1_000_003 * (options.seed + 1) + step)
    draw, rows = partial(torch.randint, generator=generator), (options.batch, options.seq)
    if options.task == "image-classification":
        size = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape = (options.batch, getattr(config, "num_channels", 3), height, width)
        images = torch.randn(shape, generator=generator)
        return {"pixel_values": images, "labels": draw(config.num_labels, rows[:1])}
    least, end = _tokens(config)
    ids = draw(least, end, rows)
    match options.task:
        case "causal-lm":
            labels = ids.clone()
        case "masked-lm":
            counted = torch.rand(rows, generator=generator) < _MASKED
            counted[:, 0] = True  # in every microbatch something counts
            labels = ids.masked_fill(~counted, -100)
        case "seq2seq-lm":
            labels = draw(least, end, rows)
        case "sequence-classification":
            labels = draw(config.num_labels, rows[:1])
    return {"input_ids": ids, "labels": labels}


def _tokens(config: Any) -> tuple[int, int]:
    """The first token of a vocabulary, but the one for padding where that is the first, and its
    end."""
    inner = config.get_text_config()
    return int(getattr(inner, "pad_token_id", None) == 0 < inner.vocab_size - 1), inner.vocab_size


class _MadeUp(Sequence[Tensor]):
    """Documents of tokens from `least` to `end`, few of which are long; the first is longest."""

    def __init__(self, least: int, end: int, options: Options) -> None:
        self._range, self._seed = (least, end), options.seed
        count = min(options.batch * options.steps, _DOCUMENTS)
        drawn = np.random.default_rng(options.seed).lognormal(*_SPREAD, count)
        self._sizes = (drawn * options.longest).astype(int).clip(1, options.longest)
        self._sizes[0] = options.longest

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: Any) -> Any:
        generator = torch.Generator().manual_seed(1_000_003 * (self._seed + 1) + number)
        return torch.randint(*self._range, (int(self._sizes[number]),), generator=generator)


TASKS: Mapping[Kind, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
}
