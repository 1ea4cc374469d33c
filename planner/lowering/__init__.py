"""A strategy on one device or several made into its round: turns, visits, values, slabs, ops."""

from planner.lowering.evaluation import evaluating, share_us
from planner.lowering.host_bytes import Store, fitted, kept_bytes, least_bytes, store
from planner.lowering.round import DeviceRound, PipelineRound
from planner.lowering.strategy import PipelineStrategy, executable, splittable
from planner.lowering.trees import needed, spread
from planner.lowering.turns import gathered
from planner.lowering.walk import walked
