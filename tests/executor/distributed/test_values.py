"""Whatever goes from one process to another arrives as it was, the state of a task among it."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import handmade
from support.chains import WIDTH, chain
from support.fit import fit, lasting
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils._pytree import tree_flatten

from executor import run
from executor.distributed.state import Roles, parcel, take
from executor.distributed.values import (
    Parcel,
    pack,
    pack_layout,
    pack_spec,
    unpack,
    unpack_layout,
    unpack_spec,
)
from executor.errors import RunError
from executor.numerics import CpuSource, Layout, Spec, TensorPlace
from executor.replay import TaskState
from executor.workload.task import Task

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
SIZES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of any dtype and few values, also none, some of them no numbers."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SIZES)
    made = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    return made * torch.nan if dtype.is_floating_point and draw(st.booleans()) else made


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=3)
KEYS = st.integers(-5, 5) | st.text(max_size=3) | st.tuples(st.integers(0, 3), st.text(max_size=2))
VALUES = st.recursive(
    PLAIN | st.binary(max_size=3) | st.complex_numbers() | tensors(),
    lambda one: (
        st.lists(one, max_size=3)
        | st.lists(one, max_size=3).map(tuple)
        | st.dictionaries(KEYS, one, max_size=3)
    ),
    max_leaves=6,
)
SPECS = st.builds(Spec, st.sampled_from(DTYPES), SIZES, SIZES)


class Pair(NamedTuple):
    first: Any
    second: Any


HOLDERS: list[Callable[[list[int]], Any]] = [
    list,
    torch.Size,
    lambda leaves: OrderedDict((f"k{one}", one) for one in leaves),
    lambda leaves: Pair(leaves, (leaves, {})),
]
CONSTANTS = st.sampled_from([None, True, 1, 0.5, "mean", torch.bfloat16, torch.device("cpu")])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Of one tensor, or of tensors and constants in a structure."""
    specs = tuple(draw(st.lists(SPECS, min_size=1, max_size=3)))
    needs = tuple(draw(st.booleans()) for _ in specs)
    if draw(st.booleans()):
        return Layout(specs, needs)
    known = [(type(one), one) for one in draw(st.lists(CONSTANTS, max_size=2))]
    leaves = (*(TensorPlace(number) for number in range(len(specs))), *known)
    held = draw(st.sampled_from(HOLDERS))(list(range(len(specs))))
    _, tree = tree_flatten({"x": held, (0, "y"): tuple(range(len(known))), "z": []})
    return Layout(specs, needs, leaves, tree)


def sent(plain: Any) -> Any:
    """As msgpack brings it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(plain))


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types, bit for bit."""
    if isinstance(one, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and all(
            torch.equal(a, b)
            for a, b in [
                [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)],
            ]
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float | complex):
        return repr(one) == repr(other)
    return bool(one == other)


@given(VALUES)
def test_a_value_arrives_as_it_was(value: object) -> None:
    """Tuples and lists, keys that are no texts, tensors without values, no numbers."""
    assert same(value, unpack(sent(pack(value))))


@pytest.mark.parametrize(
    ("strategy", "there", "back"),
    [(SPECS, pack_spec, unpack_spec), (layouts(), pack_layout, unpack_layout)],
    ids=["spec", "layout"],
)
def test_a_description_arrives_as_it_was(
    strategy: st.SearchStrategy[Any], there: Callable[[Any], Any], back: Callable[[Any], Any]
) -> None:
    """Constants with their types."""

    @given(strategy)
    def check(value: Any) -> None:
        assert back(sent(there(value))) == value

    check()


def test_what_cannot_be_said_is_refused() -> None:
    """By its type; a container that no other process finds by its name, too."""
    with pytest.raises(RunError, match="a set cannot go from one process to another"):
        pack({"x": {1}})

    class Hidden(NamedTuple):
        x: int

    with pytest.raises(RunError, match=r"a \S+<locals>.Hidden between layers cannot go"):
        pack_layout(Layout((), (), (), tree_flatten(Hidden(1))[1]))


@pytest.mark.parametrize("name", ["never_loaded.Pair", "os.system", "typing.List", "torch._dynamo"])
def test_a_name_in_a_message_is_looked_up_and_no_more(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is imported for it: only containers that this process has are known, and dtypes."""
    (tmp_path / "never_loaded.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    module, _, own = name.rpartition(".")
    with pytest.raises(RunError, match="which this one does not have"):
        unpack_layout([[], [], [], [[[module, own], None, []]]])
    with pytest.raises(RunError, match="which this one does not have"):
        unpack_spec([own, [], []])
    assert set(sys.modules) == before


WHOLE: Roles = {0: (True, True)}


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1))


def task() -> Task:
    """With buffers, random numbers, a scheduler and step counters."""
    scheduler = partial(StepLR, step_size=1, gamma=0.5)
    layers = handmade.resident().tasks[0].shards[-1].end_layer
    return replace(chain("a", layers, 4, 4, make=normed), scheduler=scheduler)


def trained(steps: int) -> TaskState:
    """The task after so many steps."""
    own = replace(task(), steps=steps)
    plan = lasting(fit(handmade.resident(), [own]), steps)
    host = run(plan, [own]).store.tasks["a"]
    state = TaskState(host, 1, CpuSource(), _nothing, _nothing)
    state.rng.go_on(steps, host.rng_state)
    return state


def _nothing(*_: object) -> None:
    return


def brought(known: Parcel) -> Parcel:
    """As a message brings it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=Parcel)


def test_a_task_goes_on_from_what_it_was_sent() -> None:
    """It would send the same itself: buffers, counters, the scheduler, random numbers."""
    known, other = brought(parcel(trained(3), 3, WHOLE, begins=False)), trained(1)
    assert brought(parcel(other, 1, WHOLE, begins=False)).shards != known.shards
    take(other, known)
    assert brought(parcel(other, 3, WHOLE, begins=False)) == known
