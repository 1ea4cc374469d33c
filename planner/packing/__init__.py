"""The sequences of a step to pipelines, what each has into microbatches, all steps into kinds of
rounds."""

from planner.packing.arranged import Arrangement, arranged, write_table
from planner.packing.asked import PACKINGS, Array, LengthsTask, bucket
from planner.packing.dispatches import dispatches, longest_first
from planner.packing.kinds import cheapest_sequence
from planner.packing.packing import How, Packing, packed
from planner.packing.pipes import Curve, PipelineType, Pool
from planner.packing.samples import Samples, counted
from planner.packing.step import pack_step
from planner.packing.sums import TOKENS, StepKind, loads
