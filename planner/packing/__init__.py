"""Packing: what a pipeline has in a step into microbatches, and all steps into kinds of rounds."""

from planner.packing.packing import WAYS, How, Packing, packed

__all__ = ["WAYS", "How", "Packing", "packed"]
