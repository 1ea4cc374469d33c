"""One task on several devices: layouts, orders and shards made into a program."""

from planner.pipelines.layout import Layout, layouts, parse_layout
from planner.pipelines.strategy import PipelineStrategy

__all__ = ["Layout", "PipelineStrategy", "layouts", "parse_layout"]
