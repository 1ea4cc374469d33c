"""What a checkpoint holds is what was written, or nothing is trained with it; what was trained in
two runs is what one run trains."""

import pickle
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import handmade
from support.chains import WIDTH, adapted, tasks_for
from support.fit import fit, later
from support.pauses import press
from support.plain import train
from support.same import assert_same
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ConstantLR, LinearLR

import plans
from executor import run
from executor.driver import Options
from executor.errors import InterruptedRun, MismatchError, RunError, UsageError
from executor.records import checkpoint
from executor.workload.task import Task
from plans import runlog
from plans.schema import Plan

Content = dict[str, Any]


def begun(folder: Path, **changes: Any) -> tuple[Plan, list[Task]]:
    """A plan of two tasks, with the states after their first step in the folder."""
    tasks = [replace(task, **changes) for task in tasks_for(handmade.relay())]
    plan = fit(handmade.relay(), tasks)
    run(later(plan, 0, 1), tasks, Options(folder=folder))
    return plan, tasks


def edit(path: Path, change: Callable[[Content], object]) -> None:
    content = torch.load(path)
    change(content)
    torch.save(content, path)


def refused(plan: Plan, tasks: list[Task], folder: Path) -> list[str]:
    """What a run that goes on from there is refused for, line by line."""
    with pytest.raises(MismatchError) as caught:
        run(later(plan, 1, 1), tasks, Options(folder=folder))
    head, *lines = str(caught.value).splitlines()
    if not lines:
        return [head]
    assert head == f"{len(lines)} things do not fit, so nothing was trained:"
    assert all(line.startswith("  ") for line in lines)
    return [line.strip() for line in lines]


def test_no_flipped_bit_is_trained_with(tmp_path: Path) -> None:
    """Wherever in the file it is, it is refused or changes nothing of what is loaded."""
    plan, _ = begun(tmp_path)
    planned = later(plan, 1, 1).tasks[:1]
    path = tmp_path / "a.pt"
    data, whole = path.read_bytes(), checkpoint.load(tmp_path, planned)["a"]
    size, found = 8 * len(data), 0
    places = {*range(0, size, size // 40), *range(size - 8 * 3000, size, 8 * 3000 // 41)}
    for number in places:  # and more of the file's directory, at its end
        odd = bytearray(data)
        odd[number // 8] ^= 1 << number % 8
        path.write_bytes(odd)
        try:
            kept = checkpoint.load(tmp_path, planned)["a"]
        except UsageError:
            found += 1
        else:
            assert all(torch.equal(kept.model[n], v) for n, v in whole.model.items())
            assert pickle.dumps(kept.settings) == pickle.dumps(whole.settings)
            assert torch.equal(kept.rng, whole.rng)
            for name, state in whole.optimizer.items():
                assert all(torch.equal(kept.optimizer[name][k], v) for k, v in state.items())
    assert found > 40


@pytest.mark.parametrize("size", [0, 100, 5000, -1])
def test_a_torn_file_is_refused(size: int, tmp_path: Path) -> None:
    plan, tasks = begun(tmp_path)
    path = tmp_path / "a.pt"
    path.write_bytes(path.read_bytes()[:size])
    (line,) = refused(plan, tasks, tmp_path)
    assert line == (
        f"{path}: is no checkpoint, or only the beginning of one; copy it again, or train from the "
        "begin with --overwrite"
    )


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    """A line for each, with its path; so is a state of another step, and a run without a folder."""
    plan, tasks = begun(tmp_path)
    rest = later(plan, 1, 1)
    with pytest.raises(UsageError, match=r"goes on after step 1; give the folder .* -o runs/x"):
        run(rest, tasks)
    (tmp_path / "a.pt").unlink()
    torch.save([1], tmp_path / "b.pt")
    none, foreign = refused(plan, tasks, tmp_path)
    assert none.startswith(f"{tmp_path}/a.pt: there is no such checkpoint; give the folder of the")
    assert foreign.startswith(f"{tmp_path}/b.pt: is no checkpoint that a run can go on from; give ")


def test_another_optimizers_state_is_refused(tmp_path: Path) -> None:
    """By the classes that trained and that would train, of every task."""
    plan, tasks = begun(tmp_path, optimizer=partial(SGD, lr=0.1, momentum=0.9))
    others = [replace(task, optimizer=partial(AdamW, lr=0.1)) for task in tasks]
    assert refused(fit(plan, others), others, tmp_path) == [
        f"task {task}: the checkpoint is of torch.optim.SGD, the task trains with "
        "torch.optim.AdamW; go on with what the task began with"
        for task in "ab"
    ]


def test_another_schedulers_state_is_refused(tmp_path: Path) -> None:
    plan, tasks = begun(tmp_path, scheduler=LinearLR)
    others = [replace(task, scheduler=ConstantLR) for task in tasks]
    lines = refused(plan, others, tmp_path)
    assert "the checkpoint is of torch.optim.lr_scheduler.LinearLR" in lines[0]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"0.0.bias": torch.zeros(16).double()}, "0.0.bias is torch.float64 in the checkpoint"),
        (
            {"0.0.bias": torch.zeros(4)},
            "the checkpoint is of another model: size mismatch for 0.0.bias: copying a param with "
            "shape torch.Size([4]) from checkpoint, the shape in current model is torch.Size([16])",
        ),
        (
            {"odd": torch.zeros(4)},
            'the checkpoint is of another model: Unexpected key(s) in state_dict: "odd"',
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(changed: Content, told: str, tmp_path: Path) -> None:
    """By dtype, shape and name of every tensor."""
    plan, tasks = begun(tmp_path)
    edit(tmp_path / "b.pt", lambda content: content["model"].update(changed))
    (line,) = refused(plan, tasks, tmp_path)
    assert line.startswith(f"task b: {told}")


def test_state_of_no_parameter_is_refused(tmp_path: Path) -> None:
    """A parameter that the model no longer has would go on without it."""

    def changed(content: Content) -> None:
        content["optimizer"]["odd"] = content["optimizer"]["0.0.bias"]

    plan, tasks = begun(tmp_path)
    edit(tmp_path / "b.pt", changed)
    (line,) = refused(plan, tasks, tmp_path)
    assert line == "task b: the checkpoint has optimizer state of odd, the model no such parameter"


class Opens:
    """Would run code when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return open, ("never", "w")


def test_a_file_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    """The refusal names the code, and nobody is told to load it all the same."""
    plan, tasks = begun(tmp_path)
    edit(tmp_path / "a.pt", lambda content: content.update(more=Opens()))
    (line,) = refused(plan, tasks, tmp_path)
    assert "is not loaded: loading it would run code from it (" in line
    assert "io.open)" in line
    assert "weights_only" not in line
    assert "allowlist" not in line


class Noting(SGD):
    """Keeps what cannot be loaded without running code."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["odd"] = Path()


def test_what_could_not_be_loaded_is_not_kept(tmp_path: Path) -> None:
    """It is said when the first checkpoint is written, not when it is needed."""
    said = r"a\.pt: no run could go on from it: the task's state holds pathlib"
    with pytest.raises(RunError, match=said):
        begun(tmp_path, optimizer=partial(Noting, lr=0.1))
    assert not list(tmp_path.glob("*.pt*"))


def test_a_file_that_grows_too_large_is_named(tmp_path: Path) -> None:
    """With both numbers, and nothing of it is left."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = r"a\.pt: cannot be written: File too large; it takes .* \(80000 bytes\), and no file may"
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(RunError, match=said):
            checkpoint.write(tmp_path / "a.pt", {"x": torch.zeros(20_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


class Strided(nn.Linear):
    """Has a buffer that lies transposed in memory, and one that shows another's bits."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        values = torch.arange(24.0)
        self.register_buffer("odd", values.reshape(4, 6).t())
        self.register_buffer("values", values)
        self.register_buffer("bits", values.view(torch.int32))


def test_a_checkpoint_is_an_ordinary_file(tmp_path: Path) -> None:
    """Loaded without Gantry, no larger than what it holds, tensors of any strides as they were."""
    tasks = tasks_for(handmade.relay(), make=Strided)
    plan = later(fit(handmade.relay(), tasks), 0, 1)
    result = run(plan, tasks, Options(folder=tmp_path))
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert_equal(content["model"], result.model("a").state_dict())
    assert content["model"]["0.odd"].stride() == (1, 6)
    for name, state in result.optimizer_state("a").items():
        assert_equal(content["optimizer"][name], state)
    tensors = [*content["model"].values()]
    tensors += [v for state in content["optimizer"].values() for v in state.values()]
    held = sum(tensor.nbytes for tensor in tensors)
    assert (tmp_path / "a.pt").stat().st_size < held + 1000 * len(tensors)


def test_a_checkpoint_of_a_frozen_base_is_what_is_trained(tmp_path: Path) -> None:
    """And the hash of the base; buffers are there. A run goes on from it with a plain loop's bits,
    on the base that model() makes; another one is refused."""
    tasks = tasks_for(handmade.streamed(), make=adapted)
    plan = fit(handmade.streamed(), tasks)
    first = run(later(plan, 0, 1), tasks, Options(folder=tmp_path))
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    named = {f"{n}.{name}" for n in range(6) for name in ("0.kept", "2.weight", "2.bias")}
    assert content["model"].keys() == named
    assert len(content["base"]) == 64
    others = [replace(task, seed=99) for task in tasks]
    with pytest.raises(MismatchError, match=r"task a: the parameters that it does not train have "):
        run(later(plan, 1, 3), others, Options(folder=tmp_path))
    second = run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
    assert_same(plan, tasks, second, earlier=[first])


def test_a_checkpoint_with_its_base_goes_on(tmp_path: Path) -> None:
    """One that has all parameters, as earlier versions wrote them, needs no base."""
    tasks = tasks_for(handmade.streamed(), make=adapted)
    plan = fit(handmade.streamed(), tasks)
    first = run(later(plan, 0, 1), tasks, Options(folder=tmp_path))
    edit(tmp_path / "a.pt", lambda content: content.pop("base"))
    with pytest.raises(MismatchError, match=r"the checkpoint is of another model: Missing key"):
        run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
    edit(tmp_path / "a.pt", lambda content: content.update(model=first.model("a").state_dict()))
    second = run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
    assert_same(plan, tasks, second, earlier=[first])


def assert_equal(mine: Content, theirs: Content) -> None:
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("on", "step"), [("a", 1), ("b", 2), ("a", 3)])
def test_a_task_on_several_devices_goes_on_on_others(on: str, step: int, tmp_path: Path) -> None:
    """Interrupted beside one on a single device, in a segment of several: what is left of both is
    trained elsewhere, with the bits of a plain loop."""
    tasks = tasks_for(handmade.gang())
    plan = fit(handmade.gang(), tasks)
    with pytest.raises(InterruptedRun):
        run(plan, [press(on, step, t) for t in tasks], Options(folder=tmp_path))
    first = runlog.load(tmp_path)
    done = {line.task: line.step for line in first.checkpoints}
    left = {task.name: task.steps - done.get(task.name, 0) for task in plan.tasks}
    assert 0 < sum(left.values()) < 8
    rest = handmade.onwards(plan, done, {"a": (2, 1), "b": (0,)})
    plans.prove(rest)
    result = run(rest, tasks, Options(folder=tmp_path))
    for task in tasks:
        plain = train(task, 2)
        losses = [line.loss for line in first.steps if line.task == task.name]
        assert losses[: done.get(task.name, 0)] + result.losses.get(task.name, []) == plain.losses
        if left[task.name]:
            for name, parameter in result.model(task.name).named_parameters():
                assert torch.equal(parameter, plain.params[name]), name


@pytest.mark.parametrize("name", ["parallel", "pipeline"])
def test_a_log_says_how_several_devices_add(name: str, tmp_path: Path) -> None:
    """For a plan of the rest, which adds in the same order; where each layer has one device, as any
    plan does."""
    made = handmade.PLANS[name]()
    run(fit(made, tasks_for(made)), tasks_for(made), Options(folder=tmp_path))
    told = runlog.load(tmp_path).header.additions
    assert {task: [one.sum for one in own] for task, own in told.items()} == (
        {"a": ["(0)+(1)"]} if name == "parallel" else {}
    )


def test_another_kind_of_device_or_precision_is_refused(tmp_path: Path) -> None:
    """A checkpoint's random numbers and loss scale belong to the kind that made them."""
    tasks = tasks_for(handmade.resident())
    plan = fit(handmade.resident(), tasks)
    run(later(plan, 0, 1), tasks, Options(folder=tmp_path))
    whole = torch.load(tmp_path / "a.pt")
    torch.save(whole | {"rng": whole["rng"][:16].clone()}, tmp_path / "a.pt")
    with pytest.raises(MismatchError, match="has 16 bytes of random state, a device"):
        run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
    torch.save(whole | {"loss_scale": {"scale": torch.ones(1)}}, tmp_path / "a.pt")
    with pytest.raises(MismatchError, match="is fp32 in the plan, and the checkpoint has a loss"):
        run(later(plan, 1, 3), tasks, Options(folder=tmp_path))
