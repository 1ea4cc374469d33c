"""A plan for other systems: torch.distributed.pipelining runs pipelines that it can express."""

from planner.exporting.torch_pipelining import Schedule, Stage, schedule
