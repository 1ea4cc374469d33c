"""Random module trees: nested lists, skips, shared and frozen parameters, batch statistics,
dropout, layers without parameters, tuples between layers; all take one tensor (rows, WIDTH)."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH, ROWS = 8, 6

Spec = tuple[Any, ...]  # a kind, and the specs of its parts

LEAVES = ("linear", "linear", "gelu", "drop", "norm", "batch", "frozen", "scale", "shared")


class Scale(nn.Module):
    """A parameter that is a module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Skip(nn.Module):
    """What goes in is added to what comes out."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Mixed(nn.Module):
    """Each part takes the mean of all that came before it."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for part in self.parts:
            seen.append(part(sum(seen[1:], seen[0]) / len(seen)))
        return seen[-1]


class Two(nn.Module):
    """Takes one tensor or two, and gives two: its own result and what it was given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, value: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, other = (value, value) if isinstance(value, Tensor) else value
        return self.inner(x) + 0.1 * other, x


class One(nn.Module):
    """The end of what gives two."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        x, other = (value, value) if isinstance(value, Tensor) else value
        return self.head(x) * torch.tanh(other)


class Listed(nn.Module):
    """A model of its own that goes through its list, with something before and after."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stem, self.parts, self.end = nn.Linear(WIDTH, WIDTH), nn.ModuleList(parts), One()

    def forward(self, x: Tensor) -> Tensor:
        value = self.stem(x)
        for part in self.parts:
            value = part(value)
        return self.end(value)


def grown(spec: Spec, shared: nn.Linear) -> nn.Module:
    """The module that a spec describes; all that are shared have this layer's parameters."""
    kind, *parts = spec
    if kind == "shared":
        twin = nn.Linear(WIDTH, WIDTH)
        twin.weight = shared.weight
        return twin
    if kind == "gelu":
        return nn.GELU()
    if kind == "drop":
        return nn.Dropout(0.2)
    if kind == "norm":
        return nn.LayerNorm(WIDTH)
    if kind == "batch":
        return nn.BatchNorm1d(WIDTH)
    if kind == "scale":
        return Scale()
    if kind in ("linear", "frozen"):
        return nn.Linear(WIDTH, WIDTH).requires_grad_(kind == "linear")
    inner = [grown(part, shared) for part in parts]
    if kind == "sequential":
        return nn.Sequential(*inner)
    return Skip(inner) if kind == "skip" else Mixed(inner)


def model(form: str, paired: bool, specs: Sequence[Spec]) -> nn.Module:
    """A chain of what the specs describe, "listed" in a model of its own or "plain"; `paired`: two
    tensors go from one to the next."""
    shared = nn.Linear(WIDTH, WIDTH)
    parts: list[nn.Module] = [grown(spec, shared) for spec in specs]
    if paired:
        parts = [Two(part) for part in parts]
    return Listed(parts) if form == "listed" else nn.Sequential(*parts, One())


def _node(parts: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    kinds = st.sampled_from(["sequential", "skip", "mixed"])
    inner = st.lists(parts, min_size=1, max_size=3)
    return st.tuples(kinds, inner).map(lambda made: (made[0], *made[1]))


TREES = st.recursive(st.sampled_from(LEAVES).map(lambda kind: (kind,)), _node, max_leaves=4)
MODELS = st.tuples(
    st.sampled_from(["plain", "listed"]), st.booleans(), st.lists(TREES, min_size=2, max_size=5)
)
