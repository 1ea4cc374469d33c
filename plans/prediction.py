"""The part of a plan that says how long it takes and how it was found; a run needs none of it."""

from typing import Literal

from profiles.schema import Count, Name, Struct


class Bound(Struct, frozen=True):
    name: str
    us: Count


class DevicePrediction(Struct, frozen=True):
    compute_us: Count
    exposed_copy_us: Count
    peak_bytes: Count


class TaskPrediction(Struct, frozen=True):
    """start_us, end_us: first op to last op of the task; round_us: one step in the steady state."""

    name: Name
    start_us: Count
    end_us: Count
    round_us: Count


class Prediction(Struct, frozen=True):
    """configuration_us: no schedule of these programs ends sooner; 0: not computed."""

    makespan_us: Count
    lower_bound_us: Count
    lower_bound_name: str
    gap_ppm: Count
    bounds: tuple[Bound, ...]
    devices: tuple[DevicePrediction, ...]
    tasks: tuple[TaskPrediction, ...]
    configuration_us: Count = 0


class Solver(Struct, frozen=True, forbid_unknown_fields=False):
    """The search that found the plan; the same for two builds of the same inputs.

    Fields of older versions are passed over: no run depends on them."""

    policy: Literal["gantry", "hydra", "lrtf", "lpt", "random"]
    seed: Count
    status: Literal["complete", "time-limit"]
    candidates: Count
