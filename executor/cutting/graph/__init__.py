"""Layers from a model's graph of tensor operations, as torch.export sees it; loaded only when
needed."""

from executor.cutting.graph.layers import cut
