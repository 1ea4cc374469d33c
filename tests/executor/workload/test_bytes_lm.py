"""The demo workload: real text, pure data, sizes that matter."""

import pytest
import torch
from support.plain import train

from executor.workload.task import Task
from executor.workloads import bytes_lm


@pytest.mark.parametrize("task", [*bytes_lm.demo(), *bytes_lm.tiny()], ids=lambda t: t.name)
def test_data_depends_on_the_step_alone(task: Task) -> None:
    """The same step gives the same batch however the default generator stands, another another."""
    torch.manual_seed(1)
    inputs, targets = task.data(3)
    torch.manual_seed(2)
    again, _ = task.data(3)
    other, _ = task.data(4)
    assert torch.equal(inputs, again)
    assert not torch.equal(inputs, other)
    assert inputs.shape == targets.shape
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_data_leaves_the_default_generator_alone() -> None:
    """Drawing a batch neither reads nor advances torch's default generator."""
    before = torch.default_generator.get_state()
    bytes_lm.tiny()[0].data(0)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_corpus_is_the_source_of_the_library() -> None:
    """The text is megabytes of Python."""
    text = bytes(bytes_lm.corpus()[:1_000_000].tolist())
    assert len(bytes_lm.corpus()) == bytes_lm.CORPUS_BYTES
    assert b"\ndef " in text


def test_models_of_the_demo_exceed_a_small_device() -> None:
    """Parameters, gradients and AdamW state do not fit into 24 MiB."""
    for task in bytes_lm.demo():
        assert not isinstance(task.model, torch.nn.Module)
        assert 16 * sum(p.numel() for p in task.model().parameters()) > 24 << 20


def test_logits_see_no_later_bytes() -> None:
    """Changing the last byte of a window changes the last position's logits only."""
    model = bytes_lm.gpt(width=32, blocks=2, heads=2, length=16, dropout=0.0)
    tokens, _ = bytes_lm.tiny()[0].data(0)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    same = (model(tokens) - model(changed)).abs().amax(dim=(0, 2)) == 0
    assert same[:-1].all()
    assert not same[-1]


def test_training_lowers_the_loss() -> None:
    """A few plain steps of the tiny model bring the loss down from that of a uniform guess."""
    losses = train(bytes_lm.tiny()[0], microbatches=2).losses
    assert losses[-1] < losses[0] - 0.05
