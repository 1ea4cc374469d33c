"""The part of a plan that says how long it takes and how it was found; a run needs none of it."""

from typing import Annotated, Literal

from msgspec import Meta

from profiles.schema import Count, Label, Name, Positive, Struct


class Bound(Struct, frozen=True):
    name: str
    us: Count


class Prediction(Struct, frozen=True):
    """bounds: no plan of these tasks ends sooner than any of them. configuration_us: no schedule of
    these programs does; 0: not computed."""

    makespan_us: Count
    bounds: Annotated[tuple[Bound, ...], Meta(min_length=1)]
    configuration_us: Count = 0

    @property
    def lower_bound_us(self) -> int:
        """The largest of the bounds."""
        return max(self.bounds, key=lambda bound: bound.us).us

    @property
    def lower_bound_name(self) -> str:
        """The name of the largest of the bounds."""
        return max(self.bounds, key=lambda bound: bound.us).name

    @property
    def gap_ppm(self) -> int:
        """The part of the makespan that is above the lower bound."""
        slack = self.makespan_us - self.lower_bound_us
        return slack * 1_000_000 // max(self.makespan_us, 1)


class Alternative(Struct, frozen=True, kw_only=True):
    """A way to train a task on several devices, or on one, that the search looked at, also the one
    it took.

    layout: depth x replicas like 2x2, each stage's replicas like 3,1, or the stages of pipelines
    side by side like 2+1+1. recompute: shards that run their forward again for their backward.
    period_us: as simulated; 0: its bound was enough to leave it. peak_bytes: the most that any
    device needs; 0: not computed. why_not: empty for the one that is in the plan.
    """

    task: Name
    devices: Positive
    layout: Label
    order: Label
    microbatch: Positive
    recompute: Count = 0
    period_us: Count = 0
    bound_us: Count
    peak_bytes: Count = 0
    why_not: Label = ""


class Group(Struct, frozen=True):
    """Tasks that train together, but not with others of their base, which is that of the task
    `base`; and why not."""

    tasks: Annotated[tuple[Name, ...], Meta(min_length=1)]
    base: Name
    why: Label


class Solver(Struct, frozen=True):
    """The search that found the plan; the same for two builds of the same inputs.

    alternatives: of tasks that could train on several devices, the best ones; looked_at: by task,
    how many ways there were. groups: of tasks of one base, where they do not all train together."""

    policy: Literal["gantry", "hydra"]
    seed: Count
    status: Literal["complete", "time-limit"]
    candidates: Count
    alternatives: tuple[Alternative, ...] = ()
    looked_at: dict[Name, Count] = {}
    groups: tuple[Group, ...] = ()
