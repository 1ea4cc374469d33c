"""What cannot be asked for together with lengths of samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support import synthetic
from support.texts import LENGTHS, text_task

from planner import Options, Problem, build, read_problem
from planner.inputs import parse_layout
from planner.sequences import with_lengths
from profiles import lengths
from profiles.codec import pretty
from profiles.errors import FormatError
from profiles.schema import Profile

TASK = text_task()
PROFILE = synthetic.profile(TASK, usable_bytes=1 << 30)


def problem(profile: Profile = PROFILE, devices: int = 2) -> Problem:
    known = {task.name: np.array(LENGTHS, np.uint32) for task in profile.tasks}
    one = Problem.of(profile, devices=devices, device_bytes=None, host_bytes=None)
    return replace(one, lengths=known)


def changed(**change: object) -> Problem:
    """The problem of a task that differs in this."""
    return problem(structs.replace(PROFILE, tasks=(structs.replace(TASK, **change),)))


def drawn(*draws: int | None) -> Problem:
    """The problem of a task whose second layer draws so many random numbers at each length."""
    layer = TASK.layers[1]
    costs = [structs.replace(c, rng_draws=n) for c, n in zip(layer.costs, draws, strict=True)]
    layers = (TASK.layers[0], structs.replace(layer, costs=tuple(costs)), *TASK.layers[2:])
    return changed(layers=layers)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (replace(problem(), order="gpipe"), "leave out --order"),
        (replace(problem(), layout=parse_layout("3,1")), "equally many replicas"),
        (drawn(256, 512, 1024, 4097), r"draws of layer 1 \(Block\) are no constant and so many"),
        (drawn(0, None, 0, 0), "draws of layer 1"),
    ],
)
def test_what_does_not_go_with_lengths_is_refused(asked: Problem, said: str) -> None:
    """By the task's name, with the reason and the remedy."""
    with pytest.raises(FormatError, match=f"^text: .*{said}"):
        with_lengths(asked)


def test_packing_and_windows_are_about_lengths() -> None:
    """Without any they are refused."""
    plain = synthetic.profile(synthetic.task("a", layers=2), usable_bytes=1 << 30)
    one = Problem.of(plain, devices=1, device_bytes=None, host_bytes=None)
    assert not with_lengths(one)
    with pytest.raises(FormatError, match=r"^--packing .* none has; leave it out"):
        with_lengths(replace(one, packing="ffd"))
    with pytest.raises(FormatError, match=r"^--reorder-window .* none has; leave it out"):
        with_lengths(replace(one, reorder_window=2))


def test_pipelines_side_by_side_are_for_lengths() -> None:
    """A batch of equal samples has none."""
    plain = synthetic.profile(synthetic.task("a", layers=2), usable_bytes=1 << 30)
    one = Problem.of(plain, devices=3, device_bytes=None, host_bytes=None)
    with pytest.raises(FormatError, match=r"^--layout 2\+1 .* depth x replicas"):
        with_lengths(replace(one, layout=parse_layout("2+1")))
    assert with_lengths(replace(problem(), layout=parse_layout("2+1")))


def test_models_that_mix_sequences_are_not_packed() -> None:
    """The reason is that of the profile; with padding each has a microbatch of its own."""
    assert TASK.lengths
    alone = structs.replace(TASK.lengths, why_not="its convolution reaches across")
    asked = changed(lengths=alone)
    assert with_lengths(asked)
    with pytest.raises(FormatError, match="its convolution reaches across; give --packing pad"):
        with_lengths(replace(asked, packing="ffd"))


def test_a_plan_with_a_table_needs_a_place_for_it() -> None:
    with pytest.raises(FormatError, match="output="):
        build(problem())


@pytest.mark.parametrize("given", [{"microbatch": 4}, {"corrections": ["c.json"]}])
def test_flags_of_measured_sizes_are_refused(given: dict[str, object], tmp_path: Path) -> None:
    """A task with lengths has microbatches of any size, from curves."""
    path = tmp_path / "p.json"
    path.write_bytes(pretty(PROFILE))
    lengths.save(path, "text", LENGTHS)
    flag = f"--{next(iter(given))} does not go"
    with pytest.raises(FormatError, match=flag):
        read_problem(str(path), Options(**given))  # type: ignore[arg-type]
    assert read_problem(str(path)).lengths["text"].tolist() == LENGTHS
