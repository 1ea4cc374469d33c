"""A causal language model of transformers with tokenized documents of every length, packed.

A microbatch is a row of documents: positions begin again with each, attention stays within it, and
its last token predicts nothing. The model's class and the names in its state are its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.workload.huggingface import attention
from executor.workload.packed import IGNORED
from executor.workload.task import Evaluation, Task

_MASKS = ("completion_mask", "assistant_masks")  # as TRL calls them; 0: no target


def causal_lm(
    name: str,
    model: nn.Module | Callable[[], nn.Module],
    documents: Sequence[Any],
    *,
    batch: int,
    longest: int | None = None,
    held_out: Sequence[Any] | None = None,
    every: int | None = None,
    **settings: Any,
) -> Task:
    """A task that trains a causal LM of transformers on `batch` documents a step, several of them
    in a microbatch.

    documents: a list or a dataset. Each is a row of tokens, or a dict like those of TRL: its
    `input_ids`, and if only some of them are to be predicted, `labels` (-100: not this one), a
    `completion_mask` or `assistant_masks`. longest: tokens of a document, of longer ones the first.
    held_out: documents on which it is evaluated after `every` so many steps. All else is as in
    `Task`: optimizer, steps, seed, precision, ...
    """
    texts = Documents(documents, longest)
    lengths = texts.lengths()
    most = int(lengths.max())
    if held_out is not None:
        other = Documents(held_out, longest)
        judged = other.lengths()
        most = max(most, int(judged.max()))
        every = settings["steps"] if every is None else every
        settings["evaluate"] = Evaluation(every=every, data=other, lengths=judged)
    return Task(
        name=name,
        model=partial(_packing, model, most),
        data=texts,
        loss=next_token_loss,
        lengths=lengths,
        batch=batch,
        **settings,
    )


@dataclass(frozen=True, eq=False)
class Documents:
    """The `data` of a task: the tokens of each document, and as targets the tokens after them."""

    given: Sequence[Any]
    longest: int | None = None

    def lengths(self) -> NDArray[np.uint32]:
        """The tokens of each document. WorkloadError where there are none."""
        if not (count := len(self.given)):
            raise WorkloadError("there are no documents; give some")
        each = (len(_tokens(self.given[n])) for n in range(count))
        found = np.fromiter(each, np.uint32, count)
        if not found.all():
            raise WorkloadError(
                f"document {int(found.argmin())} of {count} has no tokens; leave it out"
            )
        return found if self.longest is None else found.clip(max=self.longest)

    def __call__(self, samples: Sequence[int]) -> list[tuple[dict[str, Tensor], Tensor]]:
        return [self._sample(self.given[n]) for n in samples]

    def _sample(self, one: Any) -> tuple[dict[str, Tensor], Tensor]:
        ids = _row(_tokens(one), self.longest)
        labels = ids
        if isinstance(one, Mapping):
            if one.get("labels") is not None:
                labels = _row(one["labels"], self.longest)
            for mask in (one[name] for name in _MASKS if one.get(name) is not None):
                labels = labels.masked_fill(_row(mask, self.longest) == 0, IGNORED)
        return {"input_ids": ids}, F.pad(labels[1:], (0, 1), value=IGNORED)


def next_token_loss(outputs: Any, targets: Tensor) -> Tensor:
    """The sum of the cross-entropy of all tokens that have a target, in nats."""
    (logits,) = outputs.logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")


def _packing(model: nn.Module | Callable[[], nn.Module], longest: int) -> nn.Module:
    """The model, for microbatches of several documents. WorkloadError for one that has no such
    attention, or no place for as many tokens."""
    made: Any = model if isinstance(model, nn.Module) else model()
    name = type(made).__name__
    if not getattr(made, "_supports_attention_backend", False):
        raise WorkloadError(
            f"{name} has attention that cannot be exchanged, so documents would see each other; "
            "give a causal LM of transformers whose attention can, such as Llama, GPT-2 or Qwen2"
        )
    config = made.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and 0 < most < longest:
        raise WorkloadError(
            f"a document has {longest} tokens, {name} takes {most}; cut them, longest={most}"
        )
    attention.register()
    made.set_attn_implementation(attention.NAME)
    config.use_cache = made.config.use_cache = False
    made.register_forward_pre_hook(_as_row, with_kwargs=True)
    return made  # type: ignore[no-any-return]


def _as_row(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A microbatch of Gantry's, tokens first, as a batch of one row."""
    rows = {name: x[None] if x.dim() == 1 else x for name, x in kwargs.items()}
    return args, rows


def _tokens(one: Any) -> Any:
    return one["input_ids"] if isinstance(one, Mapping) else one


def _row(values: Any, longest: int | None) -> Tensor:
    return torch.as_tensor(values)[:longest].to(torch.long)
