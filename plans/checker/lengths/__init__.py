"""The checker's rules about samples of every length: kinds of rounds, and tables."""

from plans.checker.lengths.following import Pair, following, pairs
from plans.checker.lengths.kinds import kinds_shape, lengths_shape, runs_shape
from plans.checker.lengths.table import tables
