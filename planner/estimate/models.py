"""Architectures of published models: the sizes that distinguish the models of a family.

A chain is an embedding, equal blocks, and a head with the loss. The head always has parameters of
its own, also where the published model ties them to the embedding (GPT, BERT): tied layers must
stay in one shard, and a tie from one end of the chain to the other would forbid every cut. So
GPT and BERT count vocabulary x width parameters more than their published sizes.
"""

from dataclasses import dataclass
from typing import Literal

Family = Literal["gpt", "llama", "bert", "vit"]

CLASSES = 1000  # of a vision model's head (ImageNet)
PIXELS = 224  # of its images, each way
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes that distinguish one model of a family.

    positions: length of the table of learned positions, 0 where there is none. sequence: tokens
    per sample by default. patch: pixels each way of a vision model's patch.
    """

    name: str
    family: Family
    blocks: int
    width: int
    heads: int
    ffn: int
    sequence: int
    kv_heads: int = 0
    vocabulary: int = 0
    positions: int = 0
    patch: int = 0

    @property
    def kv_width(self) -> int:
        """Width of keys and of values: below the model's with grouped queries."""
        return self.width * (self.kv_heads or self.heads) // self.heads


def _gpt(name: str, blocks: int, width: int, heads: int, positions: int) -> Model:
    return Model(
        name, "gpt", blocks, width, heads, 4 * width, positions,
        vocabulary=50257, positions=positions,
    )  # fmt: skip


def _llama(
    name: str, blocks: int, width: int, heads: int, ffn: int, sequence: int, kv: int = 0
) -> Model:
    return Model(name, "llama", blocks, width, heads, ffn, sequence, kv_heads=kv, vocabulary=32000)


def _bert(name: str, blocks: int, width: int, heads: int) -> Model:
    return Model(
        name, "bert", blocks, width, heads, 4 * width, 512, vocabulary=30522, positions=512
    )


def _vit(name: str, blocks: int, width: int, heads: int, patch: int) -> Model:
    tokens = (PIXELS // patch) ** 2 + 1  # the class token is one more
    return Model(
        name, "vit", blocks, width, heads, 4 * width, tokens, positions=tokens, patch=patch
    )


_TABLE = (
    # Radford et al. 2019, as released.
    _gpt("gpt2", 12, 768, 12, 1024),
    _gpt("gpt2-medium", 24, 1024, 16, 1024),
    _gpt("gpt2-large", 36, 1280, 20, 1024),
    _gpt("gpt2-xl", 48, 1600, 25, 1024),
    # Brown et al. 2020, table 2.1. XL is listed with 24 heads of 128; 16 of them make 2048.
    _gpt("gpt3-xl", 24, 2048, 16, 2048),
    _gpt("gpt3-2.7b", 32, 2560, 32, 2048),
    _gpt("gpt3-6.7b", 32, 4096, 32, 2048),
    # Listed as 5140 wide; 40 heads of 128 make 5120.
    _gpt("gpt3-13b", 40, 5120, 40, 2048),
    # Touvron et al. 2023. 32b is what the paper calls 33B; 70b is Llama 2 with grouped queries.
    _llama("llama-7b", 32, 4096, 32, 11008, 2048),
    _llama("llama-13b", 40, 5120, 40, 13824, 2048),
    _llama("llama-32b", 60, 6656, 52, 17920, 2048),
    _llama("llama-70b", 80, 8192, 64, 28672, 4096, kv=8),
    # Devlin et al. 2019, uncased; with the masked-language-model head, without the pooler.
    _bert("bert-base", 12, 768, 12),
    _bert("bert-large", 24, 1024, 16),
    # Dosovitskiy et al. 2021, for 224 pixels.
    _vit("vit-b", 12, 768, 12, 16),
    _vit("vit-l", 24, 1024, 16, 16),
    _vit("vit-h", 32, 1280, 16, 14),
    # 2 billion parameters by depth alone, as in Hydra's evaluation: ViT-H's layer 110 times.
    _vit("vit-2b", 110, 1280, 16, 14),
)

MODELS = {model.name: model for model in _TABLE}
