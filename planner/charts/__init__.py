"""Pictures of plans and runs. matplotlib is loaded when something is drawn."""

from planner.charts.bars import KINDS
