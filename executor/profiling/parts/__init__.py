"""The relation of a batch's parts to the whole, found by running both."""

from executor.profiling.parts.find import find_parts
from executor.profiling.parts.probe import Probe
