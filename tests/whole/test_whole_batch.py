"""What is trained does not depend on the memory: plans have the losses of a plain loop over whole
batches, and the bits of one with their microbatches. `tests.benchmarks.whole_batch` tries all."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.plain import train
from support.quick import quickly
from support.whole_batch import BATCH, CLOSE, kinds, off, oracle, planned, profiled

from executor import run
from planner import Infeasible
from planner.views import step_words

pytestmark = pytest.mark.filterwarnings("default")  # transformers have their own

KINDS = kinds()
ALONE = "stays whole ({}), unless --microbatch N, which changes what is trained, cuts it"
WORDS = "gradients as of the whole batch, weighted by targets other than -100"
WHOLE = {"unet": "BatchNorm2d downs.0.1", "info-nce": "loss"}


def test_microbatches_train_what_whole_batches_do() -> None:
    """Rows of text with few targets and with none, in replicas too."""
    kind = KINDS["gpt2"]
    with quickly():
        made = profiled(kind, (1, 2))
    plain = train(kind.task, 1)
    for layout, microbatches in (("1", 8), ("1x2", 4)):
        with quickly():
            plan = planned(made, layout, microbatches)
        cut = f"{microbatches} microbatches of {BATCH // microbatches}"
        assert step_words(plan.tasks[0]) == f"{cut}, {WORDS}"
        result, same = run(plan, [kind.task]), oracle(plan, kind)
        assert off(result, plain, kind.task.name) < CLOSE
        assert result.losses[kind.task.name] == same.losses
        for parameter, value in result.model(kind.task.name).named_parameters():
            assert torch.equal(value, same.params[parameter]), parameter


@pytest.mark.parametrize("name", WHOLE)
def test_a_batch_stays_whole(name: str) -> None:
    """Unless microbatches are asked for, which the plan says; so it has no replicas."""
    kind, why = KINDS[name], WHOLE[name]
    with quickly():
        made = profiled(kind, (4, 8))
        plans = [planned(made, "2x1", None), planned(made, "1", 2)]
        with pytest.raises(Infeasible) as refused:
            planned(made, "1x2", None)
    assert ALONE.format(why) in refused.value.message
    what = "loss" if why == "loss" else "statistics"
    assert [step_words(plan.tasks[0]) for plan in plans] == [
        f"the whole batch of 8 ({why})",
        f"2 microbatches of 4, {what} of each microbatch alone ({why}), as asked",
    ]
    result = run(plans[1], [kind.task])
    assert off(result, train(kind.task, 1), kind.task.name) > CLOSE
    assert result.losses[kind.task.name] == oracle(plans[1], kind).losses
