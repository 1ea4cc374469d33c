"""Plans that torch.distributed.pipelining cannot run: each is refused by name, in one line."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support import piped, synthetic
from support.cli import nothing_written, planner_cli, refused, succeeded

import plans
from planner.exporting import schedule
from planner.orders import Places
from planner.shards import Mode
from plans.schema import Plan, RoundKind
from profiles.errors import FormatError
from profiles.schema import Evaluation

SAVED, RECOMPUTED = Mode("resident", "device", "saved"), Mode("resident", "device", "recompute")


def planned(
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
    """The message says what helps."""
    told = why(planned(mode))
    assert reason in told
    assert "--device-memory" in told


def test_replicas() -> None:
    assert "a.s1 has replicas on devices 0, 1" in why(planned(places=((0,), (0, 1), (2,))))


def test_ties_across_stages() -> None:
    """Also where both stages are on one device; within a stage they are torch's as well."""
    assert "tied layers [0, 3] of a lie in s0, s2" in why(planned(ties=((0, 3),)))
    schedule(planned(ties=((2, 3),)))


def test_recomputation_in_both_halves_of_a_backward() -> None:
    """With whole backwards it is a checkpoint."""
    assert "a.s1.I0 recomputes what its W uses" in why(planned(RECOMPUTED, named="zero-bubble"))
    schedule(planned(RECOMPUTED, named="gpipe"))


def test_a_device_without_a_shard() -> None:
    assert "device 1 has no shard of a" in why(planned(places=((0,), (0,), (2,))))


def test_a_loss_out_of_turn() -> None:
    """Torch takes the losses in the order of the last stage's forwards."""
    plan = planned()
    (program,) = plan.programs
    at = {op.id: op for op in program.round}
    swapped = {"a.s2.B0": at["a.s2.B1"], "a.s2.B1": at["a.s2.B0"]}
    other = replace(program, round=tuple(swapped.get(op.id, op) for op in program.round))
    with pytest.raises(FormatError, match=r"a\.s2 does not take its microbatches in ascending"):
        schedule(replace(plan, programs=(other,)))


def test_several_tasks_segments_and_evaluation() -> None:
    """A schedule is one step of one task."""
    plan = planned()
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
    """A row for each rank, and the stages."""
    plans.save("plan.json", planned())
    answer = succeeded(planner_cli(*EXPORT, "out"))
    assert answer.err.splitlines() == ["wrote out/schedule.csv", "wrote out/stages.json"]
    files = schedule(planned()).files()
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files
    assert len(Path("out/schedule.csv").read_text().splitlines()) == 2


@pytest.mark.usefixtures("here")
def test_the_command_writes_nothing_that_it_cannot() -> None:
    """Plans that are refused, that are not sound, and a folder that is a file."""
    plans.save("plan.json", planned(places=((0,), (0, 1), (2,))))
    with nothing_written():
        refused(planner_cli(*EXPORT, "out"), 2, "a.s1 has replicas on devices 0, 1")
    sound = planned()
    (program,) = sound.programs
    plans.save("plan.json", replace(sound, programs=(replace(program, round=program.round[1:]),)))
    with nothing_written():
        refused(planner_cli(*EXPORT, "out"), 1, "rule(s)")
    plans.save("plan.json", sound)
    with nothing_written():
        refused(planner_cli(*EXPORT, "plan.json"), 2, "is not a folder")
