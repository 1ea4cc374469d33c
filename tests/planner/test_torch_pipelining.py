"""Schedules for torch.distributed.pipelining: by hand, by its own checks, and run by it."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from support import piped, synthetic
from support.cli import nothing_written, planner_cli, refused, succeeded

import plans
from planner.exporting import Schedule, schedule
from planner.orders import NAMED, Places
from planner.shards import Mode
from plans import prove
from plans.schema import Plan, RoundKind
from profiles.errors import FormatError
from profiles.schema import Evaluation

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


def test_zero_bubble() -> None:
    """Backwards are split but for the first stage's; gradients are complete behind the last W."""
    made = exported("zero-bubble", (0, 4, 8), ((0,), (1,)), batch=2)
    assert rows(made)[1] == (
        "1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1 1REDUCE_GRAD"
    )
    assert computed(made)[0] == "0F0 0F1 0B0 0B1"


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


SEEDS = range(8)


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


def four_layers(
    second: Mode = SAVED,
    places: Places = ((0,), (0,), (1,)),
    named: str = "1f1b",
    ties: tuple[tuple[int, ...], ...] = (),
) -> Plan:
    """A plan of four layers in three shards; the second one is in this mode."""
    task = piped.halving(synthetic.task("a", layers=4, ties=ties))
    if ties:
        task = replace(task, tie_bytes=(task.layers[0].grad_bytes,))
    way = piped.piped(task, (0, 1, 2, 4), places, named, (SAVED, second, RECOMPUTED))
    return piped.planned(way)


def why(plan: Plan) -> str:
    """Why it is refused; the plan is sound."""
    plans.prove(plan)
    with pytest.raises(FormatError) as refusal:
        schedule(plan)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (Mode("streamed", "host"), "a.s1 loads its parameters in every round"),
        (Mode("kept", "device-streamed"), "a.s1 loads its parameters in every round"),
        (Mode("resident", "device-streamed"), "a.s1 is updated with state that comes and goes"),
        (Mode("resident", "device", "offload"), "a.s1 keeps activations on the host"),
        (Mode("resident", "device", spilled=True), "a.x1.S0 copies between host and device"),
    ],
)
def test_what_does_not_stay_on_its_device(mode: Mode, reason: str) -> None:
    told = why(four_layers(mode))
    assert reason in told
    assert "--device-memory" in told


def test_replicas() -> None:
    assert "a.s1 has replicas on devices 0, 1" in why(four_layers(places=((0,), (0, 1), (2,))))


def test_ties_across_stages() -> None:
    """Also where both stages are on one device; within a stage they are torch's as well."""
    assert "tied layers [0, 3] of a lie in s0, s2" in why(four_layers(ties=((0, 3),)))
    schedule(four_layers(ties=((2, 3),)))


def test_recomputation_in_both_halves_of_a_backward() -> None:
    assert "a.s1.I0 recomputes what its W uses" in why(four_layers(RECOMPUTED, named="zero-bubble"))
    schedule(four_layers(RECOMPUTED, named="gpipe"))


def test_a_device_without_a_shard() -> None:
    assert "device 1 has no shard of a" in why(four_layers(places=((0,), (0,), (2,))))


def test_a_loss_out_of_turn() -> None:
    """Torch takes the losses in the order of the last stage's forwards."""
    plan = four_layers()
    (program,) = plan.programs
    at = {op.id: op for op in program.round}
    swapped = {"a.s2.B0": at["a.s2.B1"], "a.s2.B1": at["a.s2.B0"]}
    other = replace(program, round=tuple(swapped.get(op.id, op) for op in program.round))
    with pytest.raises(FormatError, match=r"a\.s2 does not take its microbatches in ascending"):
        schedule(replace(plan, programs=(other,)))


def test_several_tasks_segments_and_evaluation() -> None:
    plan = four_layers()
    (task,) = plan.tasks
    (program,) = plan.programs
    shapes = replace(program, kinds=(RoundKind((256,), 0, 0, program.round),))
    evaluated = replace(task, evaluation=Evaluation(every=2, batches=1))
    for other, reason in (
        (replace(plan, tasks=(task, replace(task, name="b"))), r"trains 2 tasks \(a, b\)"),
        (replace(plan, segments=plan.segments * 2), "a runs in 2 segments"),
        (replace(plan, programs=(shapes,)), "a has 2 kinds of rounds, a schedule has one"),
        (replace(plan, tasks=(evaluated,)), "a evaluates between its steps"),
    ):
        with pytest.raises(FormatError, match=reason):
            schedule(other)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


EXPORT = ("export", "plan.json", "--format", "torch-pipelining", "-o")


@pytest.mark.usefixtures("here")
def test_the_command_writes_both_files() -> None:
    plans.save("plan.json", four_layers())
    answer = succeeded(planner_cli(*EXPORT, "out"))
    assert answer.err.splitlines() == ["wrote out/schedule.csv", "wrote out/stages.json"]
    files = schedule(four_layers()).files()
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files
    assert len(Path("out/schedule.csv").read_text().splitlines()) == 2


@pytest.mark.usefixtures("here")
def test_the_command_writes_nothing_that_it_cannot() -> None:
    """Plans that are refused, that are not sound, and a folder that is a file."""
    plans.save("plan.json", four_layers(places=((0,), (0, 1), (2,))))
    with nothing_written():
        refused(planner_cli(*EXPORT, "out"), 2, "a.s1 has replicas on devices 0, 1")
    sound = four_layers()
    (program,) = sound.programs
    plans.save("plan.json", replace(sound, programs=(replace(program, round=program.round[1:]),)))
    with nothing_written():
        refused(planner_cli(*EXPORT, "out"), 1, "rule(s)")
    plans.save("plan.json", sound)
    with nothing_written():
        refused(planner_cli(*EXPORT, "plan.json"), 2, "is not a folder")
