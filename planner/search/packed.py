"""The steps of a task whose samples have lengths, as they are trained one after the other."""

from dataclasses import dataclass
from pathlib import Path

from plans.schema import Lengths
from plans.timing import Runs


@dataclass(frozen=True)
class Packed:
    """turns: the kinds of the steps in turn. lengths: what a plan says of them. table: the file of
    each sample's microbatch. least_us: no way to divide the steps' samples among the same pipelines
    trains them sooner."""

    turns: Runs
    lengths: Lengths
    table: Path
    least_us: int
