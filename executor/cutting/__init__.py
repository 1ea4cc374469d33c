"""A model taken apart into layers that run one after another."""

from executor.cutting.calling import call, first, isolated, lowered, lowered_inputs, run, through
from executor.cutting.chain import Chain, chain_of, name_of, planned
from executor.cutting.proof import Training, bare, difference, trace
from executor.cutting.recomputing import TOLD, as_ever, left_out
from executor.cutting.slices import Slice
