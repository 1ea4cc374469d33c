"""What a workload's layers compute and hold, by their shapes, on the meta device."""

from executor.shapes.works import works_of
