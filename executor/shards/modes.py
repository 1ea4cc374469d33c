"""The mode that layers are in: as they train, or eval mode."""

from collections.abc import Iterator, Sequence

from torch import nn

DRAWS = "draws random numbers in eval mode; evaluation must not, or training would go on otherwise"


def modules_of(layers: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """All modules whose mode the layers' code may ask for."""
    for layer in layers:
        yield from layer.modules()


class Modes:
    """Switches layers between the modes that they were in and eval mode."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._trained: list[nn.Module] | None = None  # while they are in eval mode

    def train(self, training: bool) -> None:
        if training == (self._trained is None):
            return
        if training:
            for module in self._trained or ():
                module.training = True
            self._trained = None
            return
        self._trained = [module for module in modules_of(self._layers) if module.training]
        for module in self._trained:
            module.training = False
