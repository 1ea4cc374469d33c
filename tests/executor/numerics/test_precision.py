"""A run gives the bits of the loop that users write, in every precision."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from support import handmade
from support.chains import tasks_for
from support.fit import fit
from support.handmade import CASTING
from support.same import assert_same
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, AdamW

import plans
from executor import run
from plans.schema import Plan

FUSED = partial(AdamW, lr=1e-2, fused=True)
PLANS = ("resident", "streamed", "saved", "packed", "state", "mixed")
OPTIMIZERS = {"fused": FUSED, "loop": partial(AdamW, lr=1e-2), "sgd": partial(SGD, lr=0.1)}
UPDATES = ("streamed", "state")  # on the host, and on the device


def proven(made: Plan) -> Plan:
    plans.prove(made)
    return made


@pytest.mark.parametrize("precision", ["bf16-autocast", "bf16"])
@pytest.mark.parametrize(
    ("name", "optimizer"), [*product(PLANS, ["fused"]), *product(UPDATES, ["loop", "sgd"])]
)
def test_bits_of_the_plain_loop(name: str, precision: str, optimizer: str) -> None:
    """Autocast and fp32 masters, with dropout, however the plan moves the state."""
    tasks = [
        replace(task, precision=precision, optimizer=OPTIMIZERS[optimizer])
        for task in tasks_for(handmade.PLANS[name]())
    ]
    plan = proven(fit(handmade.PLANS[name](), tasks))
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *product(CASTING, ["fused"]),
        *((f"cast-{name}", "loop") for name in (*UPDATES, *handmade.NOTED)),
        *((f"cast-{name}", "sgd") for name in UPDATES),
    ],
)
def test_bits_without_parameters_on_the_host(name: str, optimizer: str) -> None:
    """Parameters made from masters by every prefetch are those that a step would have written,
    wherever the update runs."""
    clip = 0.05 if "norms" in name else None
    made, own = CASTING[name](), {"optimizer": OPTIMIZERS[optimizer], "clip": clip}
    tasks = [replace(task, precision="bf16", **own) for task in tasks_for(made)]
    plan = proven(fit(made, tasks))
    assert_same(plan, tasks, run(plan, tasks))


@pytest.mark.parametrize(
    ("precision", "clip"),
    [
        *product(["fp32", "fp16-autocast", "bf16", "bf16-autocast"], [0.05]),
        *product(["fp32", "fp16-autocast"], [1e9]),
        ("fp16-autocast", None),  # elsewhere nothing waits for the norms
    ],
)
@pytest.mark.parametrize("name", handmade.NOTED)
def test_bits_of_a_plain_loop_that_clips(name: str, clip: float | None, precision: str) -> None:
    """The norm of all gradients, and a loss scale that begins too high, give the same bits."""
    tasks = [
        replace(task, precision=precision, clip=clip, optimizer=FUSED)
        for task in tasks_for(handmade.NOTED[name]())
    ]
    plan = proven(fit(handmade.NOTED[name](), tasks))
    assert_same(plan, tasks, run(plan, tasks))


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 30 * F.mse_loss(outputs, targets)


@pytest.mark.parametrize("optimizer", ["fused", "loop"])
@pytest.mark.parametrize("name", handmade.NOTED)
def test_steps_are_left_out_while_the_loss_scale_is_too_high(name: str, optimizer: str) -> None:
    """Gradients that overflow halve the scale and change nothing else, as with GradScaler."""
    tasks = [
        replace(task, precision="fp16-autocast", loss=loud, optimizer=OPTIMIZERS[optimizer])
        for task in tasks_for(handmade.NOTED[name]())
    ]
    plan = proven(fit(handmade.NOTED[name](), tasks))
    result = run(plan, tasks)
    assert_same(plan, tasks, result)
    for task in tasks:
        counts = {int(s["step"]) for s in result.optimizer_state(task.name).values()}
        assert 0 < max(counts) < task.steps
