"""Profiles from formulas and datasheets, before anything was measured."""

from planner.estimate.gpus import GPUS
from planner.estimate.lengths import read as read_lengths
from planner.estimate.models import MODELS
from planner.estimate.profile import MOMENTS, NUMBER, Spec, describe, estimate
