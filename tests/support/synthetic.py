"""Seeded profiles of made-up chains of layers, so that tests of planning need no device."""

import random
from typing import Any

from planner.inputs.problem import Problem
from profiles.codec import align, sha256
from profiles.schema import (
    BatchCost,
    Device,
    Emulation,
    Host,
    Layer,
    LayerCost,
    Link,
    Machine,
    Profile,
    Rate,
    Task,
    Time,
    Workload,
)


def time_us(us: int) -> Time:
    """A made-up measurement: `us`, with a spread of 5 %."""
    return Time(us, us - us // 20, us + us // 20, 1)


def machine(
    *,
    usable_bytes: int,
    bytes_per_s: int = 1_000_000_000,
    both_bytes_per_s: int | None = None,
    latency_us: int = 20,
) -> Machine:
    """One emulated CPU device with equal links in both directions, and a roomy host.

    A copy inside the device is ten times as fast.
    """
    rate = Rate(bytes_per_s, latency_us)
    both = Rate(both_bytes_per_s or bytes_per_s, latency_us)
    inside = Rate(10 * bytes_per_s, latency_us)
    return Machine(
        devices=(
            Device(
                name="synthetic",
                kind="cpu",
                usable_bytes=usable_bytes,
                threads=1,
                links=(
                    Link("h2d", rate, both),
                    Link("d2h", rate, both),
                    Link("d2d", inside, inside),
                ),
                emulation=Emulation(bytes_per_s, bytes_per_s, latency_us),
            ),
        ),
        host=Host(usable_bytes=1 << 40, cores=2),
        load=1,
    )


def task(
    name: str,
    *,
    layers: int,
    seed: int = 0,
    steps: int = 10,
    batch: int = 4,
    param_bytes: int = 1 << 20,
    boundary_bytes: int = 1 << 16,
    forward_us: int = 1_000,
    heterogeneous: bool = True,
    draws: int | None = 1,
    states: int = 2,
    host_slowness: int = 1,
    ties: tuple[tuple[int, ...], ...] = (),
    norms: bool = False,
) -> Task:
    """A chain of `layers` layers around the given sizes (per layer, whole batch).

    states: tensors of optimizer state per parameter, 2 as in AdamW. host_slowness: how much longer
    an update takes on the host than on the device. norms: updates wait for the norms of all
    gradients.
    """
    rng = random.Random(f"{name}/{seed}")
    sizes = [2**k for k in range(batch.bit_length()) if batch % 2**k == 0]

    def scaled(value: int) -> int:
        return max(1, round(value * rng.uniform(0.4, 1.6))) if heterogeneous else value

    def layer(index: int) -> Layer:
        params, forward, saved = (
            align(scaled(param_bytes)),
            scaled(forward_us),
            scaled(boundary_bytes),
        )
        costs = tuple(_cost(m, batch, boundary_bytes, saved, forward, draws) for m in sizes)
        update = time_us(max(1, params // 1000))
        return Layer(
            name=f"layer{index}",
            param_bytes=params,
            grad_bytes=params,
            state_bytes=states * params,
            buffer_bytes=0,
            update_peak_bytes=0,
            update_device=update,
            update_host=time_us(host_slowness * update.median_us),
            norm=time_us(max(1, params // 4000)) if norms else None,
            norm_peak_bytes=align(1) if norms else 0,
            costs=costs,
        )

    return Task(
        name=name,
        workload=Workload("synthetic", sha256(f"{name}/{seed}".encode())),
        steps=steps,
        batch=batch,
        optimizer="AdamW",
        batches=tuple(BatchCost(m, align(m * 64)) for m in sizes),
        ties=ties,
        norm_bytes=layers * align(1) if norms else 0,
        layers=tuple(layer(index) for index in range(layers)),
    )


def _cost(
    m: int, batch: int, boundary: int, saved: int, forward: int, draws: int | None
) -> LayerCost:
    """A layer at microbatch m: times with a fixed part, bytes in proportion."""
    out, kept = align(boundary * m // batch), align(4 * saved * m // batch)
    us = max(1, forward * m // batch) + 20
    return LayerCost(
        microbatch=m,
        in_bytes=out,
        out_bytes=out,
        saved_bytes=kept + out,
        forward_peak_bytes=2 * out,
        backward_peak_bytes=kept + 3 * out,
        rng_draws=draws,
        forward=time_us(us),
        recompute_backward=time_us(3 * us),
        backward=time_us(2 * us),
        offload_bytes=kept + out,
    )


def profile(
    *tasks: Task,
    usable_bytes: int,
    bytes_per_s: int = 1_000_000_000,
    both_bytes_per_s: int | None = None,
) -> Profile:
    """A profile of made-up tasks on one made-up device."""
    made = machine(
        usable_bytes=usable_bytes, bytes_per_s=bytes_per_s, both_bytes_per_s=both_bytes_per_s
    )
    return Profile(machine=made, tasks=tasks)


def problem(
    *tasks: Task, devices: int = 1, host_bytes: int | None = None, **machine: Any
) -> Problem:
    """These tasks on such devices, as `profile` makes them."""
    made = profile(*tasks, **machine)
    return Problem.of(made, devices=devices, device_bytes=None, host_bytes=host_bytes)
