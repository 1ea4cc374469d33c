"""Profiles from formulas and datasheets, before anything was measured."""

from planner.estimate.gpus import GPUS
from planner.estimate.lengths import Lengths
from planner.estimate.lengths import read as read_lengths
from planner.estimate.models import MODELS
from planner.estimate.own import estimate_own, works_of
from planner.estimate.profile import MOMENTS, NUMBER, Spec, describe, estimate
