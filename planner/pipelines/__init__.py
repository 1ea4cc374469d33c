"""One task on several devices: layouts, orders and shards made into a program."""

from planner.pipelines.configure import best
from planner.pipelines.strategy import PipelineStrategy

__all__ = ["PipelineStrategy", "best"]
