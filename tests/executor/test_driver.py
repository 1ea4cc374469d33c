"""A run as a whole: what it has loaded, draws and collects, and how a refusal ends."""

import gc
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import Irregular, tasks_for
from support.fit import fit
from support.forked import ended, started
from support.same import assert_same

from executor import distributed, processes, run
from executor.distributed import World
from executor.errors import RunError, UsageError
from executor.shards import HostStore
from profiles import console


def test_the_garbage_collector_passes_over_what_a_run_begins_with() -> None:
    """A pass over the store, the models and the plan would stop all threads for a while."""
    plan, seen = handmade.solo(handmade.resident_part("a")), list[bool]()
    (task,) = tasks_for(plan)

    def data(step: int) -> object:
        seen.append(any(isinstance(one, HostStore) for one in gc.get_objects()))
        return task.data(step)

    run(fit(plan, [task]), [replace(task, data=data)])
    assert len(seen) > 1
    assert not seen[-1]


def test_one_microbatch_with_unknown_draws() -> None:
    """Layers that draw in an irregular way train exactly when a step is one microbatch."""
    plan = handmade.solo(handmade.streamed_part("a", microbatches=1))
    tasks = tasks_for(plan, make=Irregular)
    plan = fit(plan, tasks)
    (task,) = plan.tasks
    shards = tuple(structs.replace(shard, rng_draws=None) for shard in task.shards)
    plan = structs.replace(plan, tasks=(structs.replace(task, shards=shards),))
    assert_same(plan, tasks, run(plan, tasks))


class Refused:
    """A generator that nobody may have for himself."""

    def __init__(self, state: torch.Tensor) -> None:
        raise AssertionError("lent")


def test_devices_draw_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default generator is lent as a whole only where a single device computes."""
    monkeypatch.setattr("executor.replay.ops.LentGenerator", Refused)
    for name, expected in (("pipeline", nullcontext()), ("streamed", pytest.raises(RunError))):
        tasks = tasks_for(handmade.PLANS[name]())
        with expected:
            run(fit(handmade.PLANS[name](), tasks), tasks)


SCRIPT = """
import sys
import torch
from executor import late

COMPILER = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy")

def there():
    return [name for name in COMPILER if type(sys.modules.get(name)) is type(sys)]

assert not there()
with late.compiler():
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    out = layer(torch.ones(1, 2))
    torch.autograd.backward([out], [torch.ones(1, 2)])
    optimizer.step()
    assert not there()
    compiled = torch.compile(layer, backend="eager")
    assert torch.equal(compiled(torch.ones(1, 2)), layer(torch.ones(1, 2)))
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    optimizer.step()
    assert there() == list(COMPILER)
assert there() == list(COMPILER)
print("all is there")
"""


def test_nothing_is_loaded_until_something_is_compiled(tmp_path: Path) -> None:
    """A step needs no compiler; who compiles a layer has all of it, from then on."""
    (tmp_path / "script.py").write_text(SCRIPT)
    said = tmp_path / "said"
    assert ended(started(["script.py"], said, tmp_path)) == 0, said.read_text()
    assert said.read_text().endswith("all is there\n")


def test_a_refusal_keeps_its_exit_code_though_torchrun_ends_process_0_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process 0 tells the others of a plan that it refuses, whatever signal comes meanwhile."""
    said: list[str] = []

    def ended(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    def refused(_: Any) -> None:
        raise UsageError("no such task")

    board = SimpleNamespace(
        world=World(0, 2),
        prepare_s=1.0,
        say=lambda key, _: said.append(key),
        wait=ended,
    )
    monkeypatch.setattr(distributed, "world", lambda: board.world)
    monkeypatch.setattr(distributed, "meet", lambda *_: board)
    monkeypatch.setattr(processes, "_end_with_agent", lambda _: None)
    asked: Any = SimpleNamespace(given=refused, stall_seconds=None)
    with console.heard((signal.SIGTERM,), lambda *_: pytest.fail("the signal has ended it")):
        assert processes.main(asked, lambda *_: 0) == 2
    assert said[0] == "verdict"
    assert "no such task" in capsys.readouterr().err
