"""The planner's benchmark set: 1,440 seeded instances, from a page of JSON to problems.

Models are estimated, chains made up. The memory budget is a share of what the task needs with
everything on its device: parameters, gradients, state, a microbatch of data and the transients of
the whole model as one shard. An instance offers one microbatch size only.
"""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs

from planner.estimate.profile import MOMENTS, Spec, estimate
from planner.inputs.problem import Problem
from planner.shards.costs import TaskCosts
from profiles.schema import Layer, Link, Profile, Rate, Task
from profiles.units import LARGEST
from tests.support import synthetic

SET = Path(__file__).parents[1] / "data" / "planner_set" / "set.json"
LATENCY_US = 10


@dataclass(frozen=True)
class Instance:
    """One member of the set: a base (model or chain) and where it stands in the grid."""

    base: dict[str, Any]
    memory_percent: int
    link_gb_per_s: int
    optimizer: str
    microbatches: int

    @property
    def name(self) -> str:
        grid = f"mem{self.memory_percent}/link{self.link_gb_per_s}"
        return f"{self.base['name']}/{grid}/{self.optimizer}/mb{self.microbatches}"


def instances() -> list[Instance]:
    """The whole set, in the order of the file."""
    of = json.loads(SET.read_text())
    shared = {key: of[key] for key in ("batch", "steps", "seed")}
    bases = [
        {"kind": kind[:-1]} | shared | one for kind in ("models", "chains") for one in of[kind]
    ]
    grid = [of[key] for key in ("memory_percent", "link_gb_per_s", "optimizer", "microbatches")]
    return [Instance(base, *point) for base in bases for point in product(*grid)]


def problem(instance: Instance) -> Problem:
    """The instance expanded: profile, links, budget."""
    profile = (_model if instance.base["kind"] == "model" else _chain)(instance)
    rate = Rate(instance.link_gb_per_s * 10**9, LATENCY_US)
    (device,) = profile.machine.devices
    inside = [link for link in device.links if link.kind == "d2d"]
    links = (Link("h2d", rate, rate), Link("d2h", rate, rate), *inside)
    machine = structs.replace(
        profile.machine, devices=(structs.replace(device, links=links, emulation=None),)
    )
    budget = footprint(profile.tasks[0]) * instance.memory_percent // 100
    return Problem.of(
        structs.replace(profile, machine=machine),
        devices=1,
        device_bytes=budget,
        host_bytes=LARGEST,
    )


def footprint(task: Task) -> int:
    """Bytes of the task on its device with nothing moved, at its largest microbatch."""
    costs = TaskCosts(task, task.batches[-1].microbatch)
    held = sum(costs.total(what) for what in ("param_bytes", "grad_bytes", "state_bytes"))
    return held + costs.batch_bytes + costs.backward_transient(0, len(costs.layers))


def _model(instance: Instance) -> Profile:
    base = instance.base
    return estimate(
        Spec(
            base["name"],
            base["gpu"],
            base["batch"],
            microbatches=(base["batch"] // instance.microbatches,),
            optimizer=instance.optimizer,
            steps=base["steps"],
        )
    )


def _chain(instance: Instance) -> Profile:
    """A made-up heterogeneous chain; updates touch 12 bytes a parameter and 8 a moment (fp32)."""
    base, moments = instance.base, MOMENTS[instance.optimizer]
    made = synthetic.task(
        base["name"],
        layers=base["layers"],
        seed=base["seed"],
        steps=base["steps"],
        batch=base["batch"],
        param_bytes=base["param_kib"] << 10,
        boundary_bytes=base["boundary_kib"] << 10,
        forward_us=base["forward_us"],
        states=moments,
    )
    size = base["batch"] // instance.microbatches

    def update(layer: Layer, gb_per_s: int) -> int:
        return max(1, layer.param_bytes * (3 + 2 * moments) // (gb_per_s * 1000))

    layers = tuple(
        structs.replace(
            layer,
            update_device=synthetic.time_us(update(layer, base["device_gb_per_s"])),
            update_host=synthetic.time_us(update(layer, base["host_gb_per_s"])),
            costs=tuple(cost for cost in layer.costs if cost.microbatch == size),
        )
        for layer in made.layers
    )
    batches = tuple(batch for batch in made.batches if batch.microbatch == size)
    return synthetic.profile(
        structs.replace(made, layers=layers, batches=batches), usable_bytes=1 << 40
    )
