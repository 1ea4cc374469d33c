"""A plan as a schedule of torch.distributed.pipelining: what each rank runs and sends, in turn.

    rank 0   0F0  0SEND_F0  0F1  0SEND_F1  0RECV_B0  0B0 ...      stage, action, microbatch
    rank 1   1RECV_F0  1F0  1B0  1SEND_B0  1RECV_F1  1F1 ...

Ranks are the program's devices, each with its passes in the plan's order. Messages follow what
makes them, and all ranks have them in one order, so that no two ranks wait for each other.

Plans that such a schedule has no words for are refused by the name of shard or op: a stage is on
one rank and stays there with its parameters; what happens between the steps is its user's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from planner.orders import Pass
from planner.views import ranges, shards_on, stages
from plans.ops import PASSES
from plans.schema import Plan, Program, Shard, Task
from profiles.codec import pretty
from profiles.errors import FormatError

_MEMORY = "build with more --device-memory or another --order"


def expressible(plan: Plan) -> tuple[Task, Program]:
    """The task of a plan and its program; FormatError that names the first thing that a schedule of
    torch.distributed.pipelining has no word for."""
    for why in _reasons(plan):
        raise FormatError(f"torch.distributed.pipelining cannot run this plan: {why}")
    return plan.tasks[0], plan.programs[0]


def recomputes(task: Task) -> list[bool]:
    """For every shard True if its backward begins with its forward; the last shard's is one with
    its forward, which is computed once."""
    *others, _ = task.shards
    return [*(shard.activations == "recompute" for shard in others), False]


def _reasons(plan: Plan) -> Iterator[str]:
    """All reasons against it, each by name."""
    if len(plan.tasks) > 1:
        names = ", ".join(task.name for task in plan.tasks)
        yield f"it trains {len(plan.tasks)} tasks ({names}), a schedule is of one"
    (task, *_), (program, *_) = plan.tasks, plan.programs
    if task.evaluation:
        yield f"{task.name} evaluates between its steps; leave evaluate out of the task"
    if len(plan.segments) > 1:
        yield f"{task.name} runs in {len(plan.segments)} segments, a schedule is one"
    for group in task.ties:
        if len(places := sorted({home or 0 for home in task.homes(group)})) > 1:
            yield f"tied layers {list(group)} of {task.name} lie in {ranges(places)}"
    for number, shard in enumerate(task.shards):
        yield from (f"{task.name}.s{number} {why}" for why in _of_shard(shard))
    yield from _of_program(task, program)


def _of_shard(shard: Shard) -> Iterator[str]:
    if shard.param_bytes and not shard.resident:
        yield f"loads its parameters in every round; {_MEMORY}"
    if shard.grad_bytes and shard.update != "device":
        where = "on the host" if shard.update == "host" else "with state that comes and goes"
        yield f"is updated {where}; {_MEMORY}"
    if shard.activations == "offload":
        yield f"keeps activations on the host from forward to backward; {_MEMORY}"


def _of_program(task: Task, program: Program) -> Iterator[str]:
    if program.kinds:
        kinds = 1 + len(program.kinds)
        yield f"{task.name} has {kinds} kinds of rounds, a schedule has one"
    found = stages(program, task.name)
    for stage in found:
        if len(stage.devices) > 1:
            devices = ", ".join(map(str, stage.devices))
            yield f"{task.name}.s{stage.shards[0]} has replicas on devices {devices}"
    if idle := sorted(set(range(program.devices)) - shards_on(found).keys()):
        yield f"device {idle[0]} has no shard of {task.name}"
    names, again = [op.name for op in program.round], recomputes(task)
    for name in names:
        if name.kind in "PS" and name.item != "batch":
            yield f"{name} copies between host and device in every round; {_MEMORY}"
        if name.kind == "I" and again[name.number]:
            # A checkpoint is computed again in I, and for every few parameters of W.
            yield f"{name} recomputes what its W uses as well; build with another --order"
    last = len(task.shards) - 1
    ends = [name.index for name in names if name.kind in "BI" and name.number == last]
    if ends != sorted(ends):  # the schedule takes the losses in the order of the forwards
        yield f"{task.name}.s{last} does not take its microbatches in ascending order"


Row = list[Pass]


class Stage(NamedTuple):
    """Layers first_layer .. end_layer-1 on a rank. recompute: from forward to backward it keeps
    only its input, so that its user is to checkpoint it."""

    rank: int
    first_layer: int
    end_layer: int
    recompute: bool


class Schedule(NamedTuple):
    """The stages of a task and the actions of every rank."""

    task: Task
    stages: tuple[Stage, ...]
    actions: tuple[tuple[str, ...], ...]

    def files(self) -> dict[str, bytes]:
        """The actions as torch loads them, and the stages for whoever cuts the model."""
        rows = "".join(",".join(row) + "\n" for row in self.actions)
        stages = {
            "task": self.task.name,
            "batch": self.task.batch,
            "microbatches": self.task.microbatches,
            "stages": [{"stage": n, **one._asdict()} for n, one in enumerate(self.stages)],
        }
        return {"schedule.csv": rows.encode(), "stages.json": pretty(stages)}


def schedule(plan: Plan) -> Schedule:
    """The schedule of a sound plan; FormatError that names what torch has no word for."""
    task, program = expressible(plan)
    rows, ends = _passes(task, program)
    stage_of = _stage_of(task, rows)
    stages = tuple(_stages(task, rows, stage_of))
    done: list[tuple[int, int, Pass]] = []
    for rank, row in enumerate(rows):
        for one, run in groupby(row, lambda p: p._replace(shard=stage_of[p.shard])):
            done.append((max(ends[p] for p in run), rank, one))
    done.sort(key=lambda item: item[0])  # by its end each pass is behind what it needs
    return Schedule(task, stages, _actions(task, stages, ((r, one) for _, r, one in done)))


def _passes(task: Task, program: Program) -> tuple[list[Row], dict[Pass, int]]:
    """Every device's passes in turn, and when each ends. Gantry makes the last shard's forward
    within its backward; here it stands right before it."""
    rows, ends = [Row() for _ in program.memory], dict[Pass, int]()
    for op in program.round:
        name, (device, lane) = op.name, op.queue
        if lane != "compute" or name.kind not in PASSES:
            continue
        one = Pass(name.kind, name.number, name.index)  # type: ignore[arg-type]
        if name.number == len(task.shards) - 1 and one.kind in "BI":
            rows[device].append(one._replace(kind="F"))
            ends[rows[device][-1]] = op.start_us
        rows[device].append(one)
        ends[one] = op.end_us
    return rows, ends


def _stage_of(task: Task, rows: Sequence[Row]) -> list[int]:
    """The stage of every shard: neighbours on a device are one stage if their passes always follow
    each other at once, up in forwards and down in backwards, and nothing is computed again."""
    then = {one: other for row in rows for one, other in pairwise(row)}
    again = recomputes(task)
    apart = {k for k in range(1, len(again)) if again[k - 1] or again[k]}  # from the one before
    for one in (one for row in rows for one in row):
        up = one.kind == "F"
        other = one._replace(shard=one.shard + (1 if up else -1))
        if then.get(one) != other:
            apart.add(other.shard if up else one.shard)
    return list(accumulate((k in apart for k in range(1, len(again))), initial=0))


def _stages(task: Task, rows: Sequence[Row], stage_of: Sequence[int]) -> Iterator[Stage]:
    rank_of, again = {p.shard: rank for rank, row in enumerate(rows) for p in row}, recomputes(task)
    for _, shards in groupby(range(len(stage_of)), stage_of.__getitem__):
        own = list(shards)
        layers = task.shards[own[0]].first_layer, task.shards[own[-1]].end_layer
        yield Stage(rank_of[own[0]], *layers, again[own[0]])


def _actions(
    task: Task, stages: Sequence[Stage], passes: Iterable[tuple[int, Pass]]
) -> tuple[tuple[str, ...], ...]:
    """The actions of each rank: passes, messages right behind what makes them, and behind a stage's
    last backward the mark that its gradients are complete."""
    rows: list[list[str]] = [[] for _ in {stage.rank for stage in stages}]
    backwards = Counter[int]()
    for rank, (kind, k, m) in passes:
        rows[rank].append(f"{k}{kind}{m}")
        way, to = ("F", k + 1) if kind == "F" else ("B", k - 1)
        if kind != "W" and 0 <= to < len(stages) and stages[to].rank != rank:
            rows[rank].append(f"{k}SEND_{way}{m}")
            rows[stages[to].rank].append(f"{to}RECV_{way}{m}")
        backwards[k] += kind in "BW"
        if kind in "BW" and backwards[k] == task.microbatches:
            rows[rank].append(f"{k}REDUCE_GRAD")
    return tuple(map(tuple, rows))
