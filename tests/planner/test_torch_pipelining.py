"""Schedules for torch.distributed.pipelining: by hand, by its own checks, and run by it."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest
from support import piped, synthetic

from planner.exporting import Schedule, schedule
from planner.orders import NAMED, Places
from planner.shards import Mode
from plans import prove
from plans.schema import Plan

SAVED, RECOMPUTED = (
    Mode("resident", "device", activations) for activations in ("saved", "recompute")
)
LAYERS = 8
STRAIGHT, LOOPED = ((0,), (0,), (1,), (1,)), ((0,), (1,), (0,), (1,))


def planned(
    named: str, cuts: tuple[int, ...], places: Places, mode: Mode = SAVED, batch: int = 4
) -> Plan:
    """A plan of eight equal layers in this order, in microbatches of one sample."""
    task = synthetic.task("a", layers=LAYERS, batch=batch, heterogeneous=False)
    modes = (*(mode,) * (len(cuts) - 2), RECOMPUTED)  # the last shard has no forward of its own
    plan = piped.planned(piped.piped(piped.halving(task), cuts, places, named, modes))
    prove(plan)
    return plan


def exported(
    named: str, cuts: tuple[int, ...], places: Places, mode: Mode = SAVED, batch: int = 4
) -> Schedule:
    return schedule(planned(named, cuts, places, mode, batch))


def rows(made: Schedule) -> list[str]:
    return [" ".join(row) for row in made.actions]


def computed(made: Schedule) -> list[str]:
    """Each rank's passes alone."""
    return [" ".join(a for a in row if a[1] in "FBIW") for row in made.actions]


def test_gpipe() -> None:
    """All forwards, then all backwards; messages stand behind what makes them, and come in time."""
    made = exported("gpipe", (0, 4, 8), ((0,), (1,)), batch=2)
    assert rows(made) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD",
    ]
    assert made.stages == ((0, 0, 4, False), (1, 4, 8, False))


def test_zero_bubble() -> None:
    """Backwards are split but for the first stage's; gradients are complete behind the last W."""
    made = exported("zero-bubble", (0, 4, 8), ((0,), (1,)), batch=2)
    assert rows(made)[1] == (
        "1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1 1REDUCE_GRAD"
    )
    assert computed(made)[0] == "0F0 0F1 0B0 0B1"


def test_shards_that_recompute_are_stages_that_say_so() -> None:
    """Each keeps its own input; the last one makes its forward right before its backward."""
    made = exported("1f1b", (0, 2, 4, 6, 8), STRAIGHT, RECOMPUTED)
    assert [stage.recompute for stage in made.stages] == [True, True, True, False]


@cache
def drawn(seed: int) -> tuple[Plan, Schedule]:
    """Any cuts, any device for each shard, any order that has a name."""
    rng = Random(seed)
    inner = sorted(rng.sample(range(1, LAYERS), rng.randint(1, 6)))
    ranks = rng.randint(2, min(4, len(inner) + 1))
    places = [*range(ranks), *rng.choices(range(ranks), k=len(inner) + 1 - ranks)]
    rng.shuffle(places)
    named = rng.choice([*NAMED])
    mode = SAVED if named == "zero-bubble" else rng.choice([SAVED, RECOMPUTED])
    devices = tuple((device,) for device in places)
    plan = planned(named, (0, *inner, LAYERS), devices, mode, rng.choice([1, 2, 4, 8]))
    return plan, schedule(plan)


SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_have_the_plans_passes_in_the_plans_order(seed: int) -> None:
    """Every stage as the shards that it is made of: up in forwards, down in backwards."""
    plan, made = drawn(seed)
    (task,) = plan.tasks
    last = len(task.shards) - 1
    for rank, row in enumerate(made.actions):
        found = []
        for action in row:
            if action[1] in "FBIW":
                stage = made.stages[int(action[0])]
                inside = range(stage.first_layer, stage.end_layer)
                own = [k for k, shard in enumerate(task.shards) if shard.first_layer in inside]
                up = own if action[1] == "F" else own[::-1]
                found += [(k, *action[1:]) for k in up if (k, action[1]) != (last, "F")]
        names = [op.name for op in plan.programs[0].round if op.stream == f"{rank}.compute"]
        assert found == [(n.number, n.kind, str(n.index)) for n in names if n.kind in "FBIW"]


@pytest.mark.parametrize("seed", SEEDS)
def test_torch_finds_nothing_wrong(seed: int) -> None:
    """Its check of the passes gives our ranks of stages, its dry run of the messages ends."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    plan, made = drawn(seed)
    parsed = {
        rank: [schedules._Action.from_str(a) for a in row] for rank, row in enumerate(made.actions)
    }
    count, microbatches = len(made.stages), plan.tasks[0].microbatches
    found = schedules._validate_schedule(parsed, len(parsed), count, microbatches)
    assert found == {k: stage.rank for k, stage in enumerate(made.stages)}
    for actions in parsed.values():
        actions[:] = [a for a in actions if a.computation_type != schedules.REDUCE_GRAD]
    schedules._simulate_comms_compute(parsed, found.__getitem__, count)


RUN: dict[str, tuple[str, tuple[int, ...], Places, Mode]] = {
    "gpipe": ("gpipe", (0, 4, 8), ((0,), (1,)), SAVED),
    "merged": ("1f1b", (0, 2, 4, 6, 8), STRAIGHT, SAVED),
    "recomputed": ("1f1b", (0, 2, 4, 6, 8), STRAIGHT, RECOMPUTED),
    "looped": ("interleaved", (0, 2, 4, 6, 8), LOOPED, SAVED),
    "halves": ("zero-bubble", (0, 2, 3, 6, 8), STRAIGHT, SAVED),
    "v": ("zero-bubble", (0, 2, 3, 6, 8), ((0,), (1,), (1,), (0,)), SAVED),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each schedule, with what two ranks of torch found."""
    pytest.importorskip("torch")
    from support import torch_stages

    folder = tmp_path_factory.mktemp("ran")
    for name, way in RUN.items():
        (folder / name).mkdir()
        for file, data in exported(*way).files().items():
            (folder / name / file).write_bytes(data)
    command = [sys.executable, torch_stages.__file__, "2", *(str(folder / name) for name in RUN)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", RUN)
def test_a_step_in_torch_has_the_bits_of_a_plain_loop(name: str, ran: Path) -> None:
    """Losses and all gradients of a model that is cut as stages.json says."""
    import torch
    from support import torch_stages

    found = [torch.load(ran / name / f"rank{rank}.pt") for rank in range(2)]
    count = json.loads((ran / name / "stages.json").read_text())["microbatches"]
    model, losses = torch_stages.model(), []
    for x, y in zip(*(part.chunk(count) for part in torch_stages.batch(4)), strict=True):
        loss = torch_stages.loss(model(x), y, count)
        loss.backward()
        losses.append(loss.item())
    assert [x.item() for one in found for x in one["losses"]] == losses
    grads = found[0]["grads"] | found[1]["grads"]
    expected = dict(model.named_parameters())
    assert grads.keys() == expected.keys()
    for key, parameter in expected.items():
        assert torch.equal(grads[key], parameter.grad), key
