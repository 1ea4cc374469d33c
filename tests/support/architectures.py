"""Models as people write them, tiny, unchanged and with dropout on: a task for each by name.

Those of transformers are made from configurations in code, with random weights; they take a dict
and return their loss. All others are plain PyTorch with a loss function of the task.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from executor.workload.task import Task

BATCH, LENGTH, VOCABULARY, WIDTH, CLASSES = 6, 8, 64, 16, 5

Inputs = dict[str, Tensor]


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + step)


def tokens(step: int) -> Inputs:
    """Tokens to predict, every one from those before it."""
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=_generator(step))
    return {"input_ids": ids, "labels": ids.clone()}


def masked_tokens(step: int) -> Inputs:
    """Rows of different lengths, padded; only some places count. No row is full, since models of
    transformers have no mask at all where no row of a batch is padded."""
    generator = _generator(step)
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH, (BATCH, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    counted = (torch.rand(BATCH, LENGTH, generator=generator) < 0.5) & mask.bool()
    counted[:, 0] = True
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.where(counted, ids, torch.tensor(-100)),
    }


def counted(batch: Inputs) -> Tensor:
    """The number of places that count."""
    return (batch["labels"] != -100).sum()


def pairs(step: int) -> Inputs:
    """A row of tokens and a shorter one that it should become."""
    generator = _generator(step)
    source = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    return {
        "input_ids": source,
        "labels": torch.randint(VOCABULARY, (BATCH, LENGTH - 2), generator=generator),
    }


def labelled_images(step: int) -> Inputs:
    images, labels = pictures(step)
    return {"pixel_values": images, "labels": labels}


def pictures(step: int) -> tuple[Tensor, Tensor]:
    """Images and their classes."""
    generator = _generator(step)
    images = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return images, torch.randint(CLASSES, (BATCH,), generator=generator)


def scenes(step: int) -> tuple[Tensor, Tensor]:
    """Images and the class of each pixel."""
    generator = _generator(step)
    images = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return images, torch.randint(CLASSES, (BATCH, 16, 16), generator=generator)


def series(step: int) -> tuple[Tensor, Tensor]:
    """Rows of vectors and a class for each row."""
    generator = _generator(step)
    rows = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
    return rows, torch.randint(CLASSES, (BATCH,), generator=generator)


def vectors(step: int) -> tuple[Tensor, Tensor]:
    """Vectors and their classes."""
    rows, classes = series(step)
    return rows[:, 0].contiguous(), classes


ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
DECODER = SIZES | ENDS | {"num_key_value_heads": 2, "attention_dropout": 0.1}
NARROW = {"vocab_size": VOCABULARY, "n_head": 2}
GPT2 = NARROW | {"n_embd": WIDTH, "n_layer": 3, "n_positions": 32} | ENDS
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 2 * WIDTH,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
HEADS_OF_8 = DECODER | {"head_dim": 8}

Hugging = tuple[str, Mapping[str, Any], Callable[[int], Inputs]]
"""A model's class in transformers, what its configuration says, and its data."""

_HUGGING_FACE: dict[str, Hugging] = {
    "gpt2": ("GPT2LMHeadModel", GPT2, tokens),
    "bert": ("BertForMaskedLM", SIZES | {"attention_dropout": 0.1}, masked_tokens),
    "llama": ("LlamaForCausalLM", DECODER, tokens),
    "qwen3-tied": ("Qwen3ForCausalLM", HEADS_OF_8 | {"tie_word_embeddings": True}, tokens),
    "mixtral": (
        "MixtralForCausalLM",
        DECODER | {"num_local_experts": 4, "router_jitter_noise": 0.1},
        tokens,
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        HEADS_OF_8 | {"sliding_window": 4, "num_hidden_layers": 4},
        tokens,
    ),
    "opt": (
        "OPTForCausalLM",
        SIZES | ENDS | {"word_embed_proj_dim": WIDTH, "ffn_dim": 2 * WIDTH},
        tokens,
    ),
    "t5": ("T5ForConditionalGeneration", T5, pairs),
    "vit": (
        "ViTForImageClassification",
        SIZES
        | {"image_size": 16, "patch_size": 4, "num_labels": CLASSES, "hidden_dropout_prob": 0.1},
        labelled_images,
    ),
}


def hugging(kind: str, **settings: Any) -> nn.Module:
    """A tiny model of transformers, its flags as they come; `kind` as in `GPT2LMHeadModel`."""
    import transformers

    model = getattr(transformers, kind)
    return model(model.config_class(**settings))


class LayerNorm2d(nn.LayerNorm):
    """Normalises the channels of each pixel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """A wide depthwise convolution, an inverted bottleneck, a learnt scale and a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.spread(x).permute(0, 2, 3, 1))
        h = self.scale * self.down(F.gelu(self.up(h)))
        kept = torch.rand(len(x), 1, 1, 1) >= 0.1  # stochastic depth, by sample
        return x + h.permute(0, 3, 1, 2) * kept.to(h.device)


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.downsamples = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), LayerNorm2d(8)),
                nn.Sequential(LayerNorm2d(8), nn.Conv2d(8, 16, 2, stride=2)),
            ]
        )
        self.stages = nn.ModuleList(
            nn.Sequential(ConvNextBlock(width), ConvNextBlock(width)) for width in (8, 16)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for downsample, stage in zip(self.downsamples, self.stages, strict=True):
            x = stage(downsample(x))
        return self.head(self.norm(x.mean((-2, -1))))


class BasicBlock(nn.Module):
    """Two convolutions with batch statistics, and a skip."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        h += skip
        return self.relu(h)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.layer3 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32, 1))
        self.layer4 = nn.Sequential(BasicBlock(32, 32, 1), BasicBlock(32, 32, 1))
        self.avgpool, self.dropout = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.2)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))


class DenseNet(nn.Module):
    """Each layer takes what all layers before it made."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(2, 8 + 8 * k),
                nn.ReLU(),
                nn.Conv2d(8 + 8 * k, 8, 3, padding=1, bias=False),
                nn.Dropout(0.1),
            )
            for k in range(4)
        )
        self.head = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(torch.cat(features, 1).mean((2, 3)))


def _double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
    )


class UNet(nn.Module):
    """Skips from each level down to the same level up."""

    def __init__(self) -> None:
        super().__init__()
        self.downs = nn.ModuleList([_double(3, 8), _double(8, 16)])
        self.middle = _double(16, 32)
        self.widen = nn.ModuleList(
            [nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)]
        )
        self.ups = nn.ModuleList([_double(32, 16), _double(16, 8)])
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for widen, up in zip(self.widen, self.ups, strict=True):
            x = up(torch.cat([widen(x), skips.pop()], 1))
        return self.head(x)


class Recurrent(nn.Module):
    """A stack of LSTMs with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for cell in self.cells:
            x, _ = cell(x)
            x = self.dropout(x)
        return self.head(x[:, -1])


class Frozen(nn.Module):
    """Linear layers, some of which do not learn, and one of which nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 32).requires_grad_(False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)
        )
        self.blocks[1].requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class LowRank(nn.Module):
    """A frozen linear layer and a small learnt correction."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        self.dropout = nn.Dropout(0.1)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(self.dropout(x))) * 2


def _adapted() -> nn.Module:
    """Llama whose attention alone learns, by low-rank corrections."""
    model = hugging("LlamaForCausalLM", **DECODER).requires_grad_(False)
    for module in list(model.modules()):
        for name in ("q_proj", "v_proj"):
            if isinstance(inner := getattr(module, name, None), nn.Linear):
                setattr(module, name, LowRank(inner))
    return model


_PLAIN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]]]] = {
    "convnext": (ConvNext, pictures),
    "resnet18": (ResNet18, pictures),
    "densenet": (DenseNet, pictures),
    "unet": (UNet, scenes),
    "lstm": (Recurrent, series),
    "mlp-frozen": (Frozen, vectors),
}

NAMES = (*_HUGGING_FACE, "lora", *_PLAIN)


def architecture(name: str, steps: int = 3) -> Task:
    """The task of that name: one of `NAMES`."""
    if name == "lora":
        return task_of(name, _adapted, tokens, None, steps)
    if name in _PLAIN:
        return task_of(name, *_PLAIN[name], F.cross_entropy, steps)
    kind, settings, data = _HUGGING_FACE[name]
    return task_of(name, partial(hugging, kind, **settings), data, None, steps)


def task_of(
    name: str, make: Callable[[], nn.Module], data: Callable[[int], Any], loss: Any, steps: int
) -> Task:
    return Task(
        name=name,
        model=make,
        data=data,
        loss=loss,
        optimizer=partial(AdamW, lr=1e-3, fused=True),
        steps=steps,
        seed=11,
        weight=counted if data is masked_tokens else None,
    )
