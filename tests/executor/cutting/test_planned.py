"""A run cuts models as they were when profiled, and has the memory for that."""

from typing import Any

import pytest
from msgspec.structs import replace
from support.architectures import architecture
from support.quick import ROOM, built, measured, quickly
from support.same import assert_same

from executor import run
from executor.cutting import chain
from executor.cutting.chain import Chain
from executor.errors import MismatchError, RunError
from executor.shards import host_room
from executor.workload.batches import staging_bytes
from executor.workload.task import Task
from plans.schema import Plan

pytestmark = pytest.mark.filterwarnings("default")  # transformers has its own


@pytest.fixture(scope="module")
def made() -> tuple[Task, Plan]:
    """A task whose model lists blocks between other modules, and its plan."""
    task = architecture("lstm")
    with quickly():
        return task, built(measured(task, 2), ROOM)


def test_a_run_proves_no_layers(made: tuple[Task, Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes backward through shards alone, never through the whole model, and has its bits."""
    task, plan = made
    with monkeypatch.context() as patch:
        patch.setattr(chain, "trace", None)  # by which layers are proven
        result = run(plan, [task])
    assert_same(plan, [task], result)


@pytest.mark.parametrize("versions", [None, "torch 0.1"])
def test_what_was_cut_by_others_is_proven_again(
    made: tuple[Task, Plan], versions: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that does not say how, or says so of other packages, is cut as by a profile."""
    task, plan = made
    (own,) = plan.tasks
    assert own.cut is not None
    cut = replace(own.cut, versions=versions) if versions else None
    proven: list[object] = []
    chain_of = chain.chain_of

    def counted(*given: Any, **how: Any) -> Chain:
        proven.append(given)
        return chain_of(*given, **how)

    monkeypatch.setattr(chain, "chain_of", counted)
    old = replace(plan, tasks=(replace(own, cut=cut),))
    assert_same(old, [task], run(old, [task]))
    assert len(proven) == 1


def test_another_model_is_refused(made: tuple[Task, Plan]) -> None:
    """Where the modules that were layers are no longer there, the error says what to do."""
    task, plan = made
    (own,) = plan.tasks
    assert own.cut is not None
    gone = replace(own, cut=replace(own.cut, paths=("no.such.module",)))
    with pytest.raises(MismatchError, match=r"as when it was profiled.*profile and build again"):
        run(replace(plan, tasks=(gone,)), [task])


@pytest.mark.parametrize("there", [False, True])
def test_room_for_the_model_is_counted(
    made: tuple[Task, Plan], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is yet to be built takes as much again as its parameters in the store."""
    task, plan = made
    assert callable(task.model)
    task = Task(**vars(task) | {"model": task.model()}) if there else task
    parameters = sum(shard.param_bytes for shard in plan.tasks[0].shards)
    staging = staging_bytes(plan.tasks[0])
    needed = plan.host.bytes + staging + (0 if there else parameters)
    monkeypatch.setattr(host_room, "free_host_bytes", lambda: needed - 1)
    told = f"need {needed} bytes, the machine has {needed - 1} free: task parameters .*host-memory"
    with pytest.raises(RunError, match=told):
        run(plan, [task])
    monkeypatch.setattr(host_room, "free_host_bytes", lambda: needed)
    run(plan, [task])
