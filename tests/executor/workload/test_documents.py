"""The workload with documents of every length: its data, its model, and its profile."""

from pathlib import Path

import pytest
import torch
from support.cli import Answer, executor_cli, refused, succeeded
from support.steady import timeless

from executor.workload import Task, build, pack, padded, take
from executor.workload.task import checked
from executor.workloads.documents import LONGEST, demo, lengths, tiny
from profiles import lengths as files
from profiles import load
from profiles.curves import curves_of

SIZES = "64,128,256,512"


@pytest.fixture(scope="module")
def task() -> Task:
    return tiny()[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A profile of the tiny task, without times, and what the command said."""
    path = tmp_path_factory.mktemp("documents") / "x.json"
    with timeless():
        return path, executor_cli(*_profile(path, "--lengths", SIZES))


def _profile(path: Path, *more: str) -> list[str]:
    ref, cpu = "executor.workloads.documents:tiny", ["--device", "cpu", "--device-memory", "64MiB"]
    return ["profile", ref, *cpu, "--samples", "1", "-o", str(path), *more]


def test_documents_are_the_beginnings_of_files_in_a_fixed_order(task: Task) -> None:
    """Each as long as it says, the next byte as its target; few of them are long."""
    assert checked("x", [task, *demo()])
    (x, y), (again, _) = task.data([7, 7])
    assert torch.equal(x[1:], y[:-1])
    assert torch.equal(x, again)
    found = sorted(lengths(LONGEST))
    assert len(found) > 100
    assert found[-1] == LONGEST > 3 * found[len(found) // 2] > 9 * found[len(found) // 10]


def test_packed_documents_have_the_outputs_of_each_alone(task: Task) -> None:
    """With and without padding between them; gradients are those of the sum."""
    model = build(task)[0].double()
    samples = take(task, [0, 1, 2, 3])
    packs = [[pack(task, [sample]) for sample in samples], [pack(task, samples)]]
    packs.append([pack(task, padded(samples, 512))])
    totals = []
    for batches in packs:
        model.zero_grad()
        assert task.loss is not None
        loss = sum(task.loss(model(*batch.inputs), batch.targets) for batch in batches)
        assert isinstance(loss, torch.Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        totals.append(
            [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        )
    for total in totals[1:]:
        for mine, plain in zip(total, totals[0], strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-9)


def test_later_bytes_do_not_change_what_is_said_of_earlier_ones(task: Task) -> None:
    """Nor do those of other documents."""
    model, samples = build(task)[0], take(task, [0, 1])
    (x, *more), _ = pack(task, samples)
    with torch.no_grad():
        other = torch.cat([x[:30], (x[30:] + 1) % 256])
        before, after = model(x, *more), model(other, *more)
    assert torch.equal(before[:30], after[:30])
    assert not torch.equal(before[30:], after[30:])


def test_a_profile_has_curves_and_lengths(made: tuple[Path, Answer], task: Task) -> None:
    """Measured at the lengths asked for; the file beside it has those of the samples."""
    path, answer = made
    (profiled,) = load(path).tasks
    assert profiled.batch == task.batch
    assert profiled.lengths.why_not == ""
    assert files.load(path, [profiled])[profiled.name].tolist() == task.lengths
    for layer in profiled.layers:
        assert [cost.microbatch for cost in layer.costs] == [64, 128, 256, 512]
        assert {"forward", "recompute_backward", "backward"} <= {
            one.op for one in curves_of(layer.costs)
        }
        assert all(curve.off_ppm <= 10_000 for curve in curves_of(layer.costs))
    assert [(b.microbatch, b.batch_bytes) for b in profiled.batches] == [
        (n, 4 * 8 * n)
        for n in (64, 128, 256, 512)  # tokens, positions, sequences, targets
    ]
    assert "measured at 64, 128, 256, 512" in succeeded(answer).out


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--lengths", "64,128,256"), "--lengths lists 3 lengths; a curve needs 4 or more"),
        (("--lengths", "64,0,128,256"), "'0' is not a whole number from 1"),
        (("--lengths", "64,x,128,256"), "'x' is not a whole number from 1"),
        (("--lengths", "64,100,128,255"), "one must be a multiple of 256"),
        (("--lengths", "64,128,256,1024"), "layer 0 (before blocks.0): IndexError"),
    ],
)
def test_bad_lengths_are_refused(tmp_path: Path, more: tuple[str, ...], text: str) -> None:
    """One line, exit code 2, and nothing is written."""
    with timeless():
        refused(executor_cli(*_profile(tmp_path / "x.json", *more)), 2, text)
    assert not list(tmp_path.iterdir())


def test_lengths_are_refused_for_tasks_without(tmp_path: Path) -> None:
    """Samples of one length are measured by their number."""
    command = _profile(tmp_path / "x.json", "--lengths", SIZES)
    command[1] = "executor.workloads.bytes_lm:tiny"
    refused(executor_cli(*command), 2, "--lengths is for tasks with lengths; executor.workloads.b")
