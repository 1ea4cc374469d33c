"""Tiny causal language models as transformers has them, documents, and tasks of both."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from executor.workload import Task, causal_lm

VOCABULARY, LONGEST, BATCH, STEPS = 64, 300, 6, 4
ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}
LLAMA: dict[str, Any] = ENDS | {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
GPT2: dict[str, Any] = ENDS | {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
}
STILL = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}


def llama(**more: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**LLAMA | more))


def qwen2(**more: Any) -> nn.Module:
    """Its second layer sees some tokens back only."""
    return Qwen2ForCausalLM(Qwen2Config(**LLAMA | SLIDING | more))


def gpt2(**more: Any) -> nn.Module:
    """With dropout of embeddings, of what is added to them, and of the weights of attention."""
    return GPT2LMHeadModel(GPT2Config(**GPT2 | more))


def documents(count: int = 20, longest: int = LONGEST) -> list[list[int]]:
    """Of uneven lengths."""
    rng = np.random.default_rng(0)
    sizes = np.minimum(longest, rng.lognormal(4, 0.8, count)).astype(int) + 1
    return [rng.integers(1, VOCABULARY, size).tolist() for size in sizes.clip(max=longest)]


def task(model: Callable[[], nn.Module], given: Sequence[Any] = (), **more: Any) -> Task:
    settings: dict[str, Any] = {
        "name": "lm",
        "batch": BATCH,
        "steps": STEPS,
        "optimizer": partial(AdamW, lr=1e-2),
    }
    return causal_lm(model=model, documents=given or documents(), **settings | more)


def row(samples: Sequence[tuple[dict[str, Tensor], Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """A microbatch of these samples."""
    ids = [inputs["input_ids"] for inputs, _ in samples]
    inputs = {
        "input_ids": torch.cat(ids),
        "position_ids": torch.cat([torch.arange(len(one)) for one in ids]),
        "sequence_ids": torch.cat([torch.full((len(one),), k) for k, one in enumerate(ids)]),
    }
    return inputs, torch.cat([targets for _, targets in samples])


def numbers() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Models without dropout, by name."""
    yield "llama", llama
    yield "qwen2", qwen2
    yield "gpt2", partial(gpt2, **STILL)
