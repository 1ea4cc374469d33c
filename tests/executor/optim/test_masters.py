"""Host steps of masters, block by block: the bits of torch's own step, or that itself."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from executor.numerics.flat import Spec, Views
from executor.optim import masters

Make = Callable[..., Optimizer]
KINDS: dict[str, Make] = {
    "adamw": functools.partial(AdamW, lr=1e-2, weight_decay=0.1),
    "adamw-heavy": functools.partial(AdamW, lr=0.7, betas=(0.3, 0.6), weight_decay=0.9),
    "adamw-tensor-lr": functools.partial(AdamW, lr=torch.tensor(1e-3), weight_decay=0.0),
    "adam": functools.partial(Adam, lr=1e-3),
    "adam-l2": functools.partial(Adam, lr=1e-3, betas=(0.45, 0.95), eps=1e-6, weight_decay=0.3),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks in most parameters."""
    monkeypatch.setattr(masters, "BLOCK", 32)


class Side:
    """One optimizer with its masters, parameters and gradients, in flats as the executor has them.

    Two sides of one seed are equal.
    """

    def __init__(self, make: Make, sizes: list[int], seed: int = 0, groups: bool = False) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.sizes = sizes
        self.masters = [nn.Parameter(torch.randn(n, generator=self.random)) for n in sizes]
        views = Views(Spec(torch.bfloat16, (n,), (1,)) for n in sizes)
        flats = [torch.zeros(views.bytes, dtype=torch.uint8) for _ in range(2)]
        self.params, self.grads = map(views.at, flats)
        parameters: list[Any] = list(self.masters)
        if groups:
            parameters = [
                {"params": self.masters[::2]},
                {"params": self.masters[1::2], "lr": 0.03, "weight_decay": 0.2},
            ]
        self.optimizer = make(parameters, fused=True)

    def new_grads(self) -> None:
        """The next step's gradients, of many magnitudes."""
        for grad, n in zip(self.grads, self.sizes, strict=True):
            exponents = torch.randint(-30, 3, (n,), generator=self.random)
            grad.copy_(torch.randn(n, generator=self.random) * 2.0**exponents)

    def tensors(self) -> list[Tensor]:
        """All there is, as integers, since a NaN has bits too."""
        state = [
            value for master in self.masters for value in self.optimizer.state[master].values()
        ]
        every = [*self.masters, *state, *self.params]
        return [t.detach().view({2: torch.int16, 4: torch.int32}[t.itemsize]) for t in every]

    @property
    def given(self) -> masters.Stepped:
        return masters.Stepped(self.optimizer, self.masters, self.params, self.grads)

    @property
    def fits(self) -> bool:
        return masters.fits_blocks(self.given)

    def by_blocks(self, scale: float) -> None:
        assert self.fits
        masters.step_masters(self.given, scale)

    def plain(self, scale: float) -> None:
        masters.plain_step(self.given, scale)


def assert_same(one: Side, other: Side) -> None:
    mine, theirs = one.tensors(), other.tensors()
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape
        assert torch.equal(a, b)
    for a, b in zip(one.masters, other.masters, strict=True):
        assert list(one.optimizer.state[a]) == list(other.optimizer.state[b])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(KINDS)),
    sizes=st.lists(st.integers(0, 70) | st.just(1003), min_size=2, max_size=4),
    scales=st.lists(st.sampled_from([1.0, 0.37, 3.0, 1e-3]), min_size=1, max_size=4),
    groups=st.booleans(),
    turns=st.booleans(),
    odd=st.sampled_from([None, float("nan"), float("inf"), -float("inf"), 3e38, 1e-40]),
    seed=st.integers(0, 2**31),
)
def test_blocks_give_the_bits_of_torch(
    kind: str,
    sizes: list[int],
    scales: list[float],
    groups: bool,
    turns: bool,
    odd: float | None,
    seed: int,
) -> None:
    """Masters, state and parameters are equal after several steps, clipped and not, also beyond
    the last whole vector, of gradients that are no numbers or overflow, and where both take turns,
    each with the state dict of the other."""
    one, other = (Side(KINDS[kind], sizes, seed, groups) for _ in range(2))
    for number, scale in enumerate(scales):
        for side in (one, other):
            side.new_grads()
            for grad in side.grads if odd is not None else ():
                grad[::3] = odd
        (one.plain if turns and number % 2 else one.by_blocks)(scale)
        other.plain(scale)
        if turns:
            one.optimizer.load_state_dict(one.optimizer.state_dict())
        assert_same(one, other)


def test_decay_is_rounded_as_torch_rounds_it() -> None:
    """1 - lr * decay lies so near the middle of two floats that a rounding more would show."""
    near_one_percent = (round(0.01 * 2**30) + 0.5) / 2**30  # between two floats
    for lr in (0.99, 0.981, 0.9811):
        middle = (1.0 - near_one_percent) / lr
        for decay in (middle * (1 + k * 2.0**-52) for k in range(-3, 4)):
            make = functools.partial(AdamW, lr=lr, weight_decay=decay)
            one, other = (Side(make, [16]) for _ in range(2))
            one.by_blocks(1.0)  # no gradient: decay is all there is
            other.plain(1.0)
            assert_same(one, other)


@pytest.mark.parametrize("kind", ["adamw", "adam-l2"])
def test_several_threads_equal_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks of threads leave no trace."""
    monkeypatch.setattr(masters, "BLOCK", 1 << 11)
    threads = torch.get_num_threads()
    sides = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            side = Side(KINDS[kind], [12_003, 5_000])
            for _ in range(2):
                side.new_grads()
                side.by_blocks(0.5)
            sides.append(side)
    finally:
        torch.set_num_threads(threads)
    assert_same(sides[0], sides[1])
    assert_same(sides[0], sides[2])


def test_autograd_notices_that_parameters_were_written() -> None:
    """A graph that was made before the step may not be used after it."""
    side = Side(KINDS["adamw"], [8])
    side.new_grads()
    (param,) = side.params
    x = torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
    product = (x * param).sum()
    side.by_blocks(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product)


def test_defaults_of_the_user_change_nothing() -> None:
    """Numbers of 64 bits are the default of some models."""
    one, other = (Side(KINDS["adamw"], [33, 1000]) for _ in range(2))
    torch.set_default_dtype(torch.float64)
    try:
        for side, step in ((one, one.by_blocks), (other, other.plain)):
            side.grads[1].fill_(0.5)
            step(0.5)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(one, other)


def test_a_scheduler_may_watch() -> None:
    """The step that a scheduler puts in place of the optimizer's only notes that it was called."""
    side, other = Side(KINDS["adamw"], [33, 7]), Side(KINDS["adamw"], [33, 7])
    rates = [StepLR(one.optimizer, 1, gamma=0.5) for one in (side, other)]
    for _ in range(3):
        side.new_grads()
        other.new_grads()
        side.by_blocks(1.0)
        other.plain(1.0)
        for rate in rates:
            rate.step()
        assert all(map(torch.equal, side.tensors(), other.tensors()))


def of_a_group(**option: object) -> Callable[[Side], object]:
    return lambda side: side.optimizer.param_groups[0].update(option)


def another(make: Make) -> Callable[[Side], object]:
    return lambda side: vars(side).update(optimizer=make(side.masters, lr=0.1, fused=True))


def strided_grads(side: Side) -> None:
    side.grads[0] = torch.zeros(66, dtype=torch.bfloat16)[::2]


def double_masters(side: Side) -> None:
    side.masters[0].data = side.masters[0].data.double()


OTHERS: dict[str, Callable[[Side], object]] = {
    "amsgrad": of_a_group(amsgrad=True),
    "maximize": of_a_group(maximize=True),
    "not fused": of_a_group(fused=None),
    "another kind": another(SGD),
    "subclass": another(type("Mine", (AdamW,), {})),
    "float params": lambda side: vars(side).update(params=[p.float() for p in side.params]),
    "half grads": lambda side: vars(side).update(grads=[g.half() for g in side.grads]),
    "strided grads": strided_grads,
    "double masters": double_masters,
    "hooked": lambda side: side.optimizer.register_step_post_hook(lambda *_: None),
    "stepped otherwise": lambda side: setattr(side.optimizer, "step", lambda closure=None: None),
}


@pytest.mark.parametrize("change", OTHERS)
def test_other_steps_are_torchs_own(change: str) -> None:
    """With two casts around them."""
    side = Side(KINDS["adamw"], [33, 7])
    side.new_grads()
    OTHERS[change](side)
    assert not side.fits
