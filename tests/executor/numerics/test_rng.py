"""Random numbers: counted, found in advance, and drawn from each task's own stream."""

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from executor.numerics.rng import (
    CpuSource,
    DrawError,
    Guard,
    LentGenerator,
    OwnRandomness,
    RandomMode,
    Row,
    TaskRng,
    no_draws,
)


def seeded(seed: int = 0) -> Tensor:
    return Generator().manual_seed(seed).get_state()


def after(state: Tensor, draws: int) -> Tensor:
    generator = Generator()
    generator.set_state(state)
    torch.empty(draws, dtype=torch.uint8).random_(generator=generator)
    return generator.get_state()


@pytest.mark.parametrize("start", [0, 1, 623, 624, 1000])
@pytest.mark.parametrize("draws", [0, 1, 623, 624, 625, 5000])
def test_draws_are_counted(start: int, draws: int) -> None:
    """Within a block of the generator, at its edges and over several of them."""
    before = after(seeded(), start)
    assert CpuSource().count(before, after(before, draws)) == draws


def test_a_dropout_is_plain_draws() -> None:
    """Advancing by the number counted leads to the very state that a dropout leaves."""
    torch.manual_seed(5)
    before = torch.default_generator.get_state()
    F.dropout(torch.ones(1001), 0.3)
    left = torch.default_generator.get_state()
    draws = CpuSource().count(before, left)
    assert draws
    assert torch.equal(after(before, draws), left)


def test_half_a_pair_is_not_counted() -> None:
    """A small randn keeps a number for later; the state is no longer plain draws away."""
    before = torch.manual_seed(5).get_state()
    torch.randn(3)
    assert CpuSource().count(before, torch.default_generator.get_state()) is None


def test_too_many_or_backwards_is_not_counted() -> None:
    """Counting gives up at a limit, and never goes backwards."""
    state = seeded()
    assert CpuSource().count(state, after(state, 100_000), limit=50_000) is None
    assert CpuSource().count(after(state, 10), after(state, 5)) is None
    assert CpuSource().count(seeded(1), seeded(2), limit=10_000) is None


def test_states_are_those_of_the_plain_loop() -> None:
    """Microbatch by microbatch, shard by shard, step by step, from whichever one asks for."""
    rng = TaskRng(seeded(), [3, 0, 700], 2)
    for step in range(2):
        for microbatch in (1, 0):
            for shard, skipped in enumerate([0, 3, 3]):
                drawn = (2 * step + microbatch) * 703 + skipped
                found = rng.state(step, microbatch, shard)
                assert torch.equal(found, after(seeded(), drawn))


def test_microbatches_that_draw_unequally_begin_where_those_before_them_end() -> None:
    """Each step by its own rows; one that the loop does not have draws nothing for anybody."""
    rows: list[list[Row | None]] = [[[3, 4], None, [5, 6]], [[1, 2], [7, 8]]]
    rng = TaskRng(seeded(), [9, 9], 3, rows=rows.__getitem__)
    drawn = 0
    for step in range(2):
        assert torch.equal(rng.before(step), after(seeded(), drawn))
        for microbatch, row in enumerate(rows[step]):
            for shard in range(2):
                state = rng.state(step, microbatch, shard)
                assert torch.equal(state, after(seeded(), drawn))
                rng.finish(step, microbatch, shard, after(state, row[shard] if row else 99))
                drawn += row[shard] or 0 if row else 0
    assert torch.equal(rng.before(2), after(seeded(), drawn))
    with pytest.raises(DrawError, match="9 now and 8 in the plan"):
        rng.finish(1, 1, 1, after(rng.state(1, 1, 1), 9))


def test_a_wrong_end_is_an_error() -> None:
    """A forward must end where the next one begins."""
    rng = TaskRng(seeded(), [3, 4], 2)
    rng.finish(0, 0, 0, after(rng.state(0, 0, 0), 3))
    with pytest.raises(DrawError, match="varying number"):
        rng.finish(0, 0, 1, after(rng.state(0, 0, 1), 5))


class OwnSource:
    """A generator of a device's own."""

    shared = False

    def __init__(self) -> None:
        self.generator = Generator().manual_seed(1)

    def get(self) -> Tensor:
        return self.generator.get_state()

    def set(self, state: Tensor) -> None:
        self.generator.set_state(state)

    def advanced(self, state: Tensor, draws: int) -> Tensor:
        return CpuSource().advanced(state, draws)

    def count(self, before: Tensor, after: Tensor, limit: int = 1 << 28) -> int | None:
        return CpuSource().count(before, after, limit)


def test_the_guard_of_a_device_notices_a_draw_from_the_cpus_generator() -> None:
    """A layer on a GPU decided by torch.rand(1) on the host, which its recomputation would not."""
    source = OwnSource()
    guard = Guard(source)
    guard.check()
    torch.rand(1, generator=source.generator)
    with pytest.raises(DrawError, match="drew random numbers or set a seed"):
        guard.check()
    guard = Guard(source)
    torch.rand(1)
    with pytest.raises(DrawError, match=r"drew from the CPU's generator.*device=x.device"):
        guard.check()


class Noise(Dataset[Tensor]):
    """Samples that are drawn where they are loaded."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Tensor:
        return torch.randn(3)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_processes_that_load_data_have_generators_of_their_own() -> None:
    """They inherit the mode of the thread that forks them, and not its generator."""
    with OwnRandomness():
        loader = DataLoader(Noise(), 2, num_workers=1, generator=Generator().manual_seed(1))
        assert [batch.shape for batch in loader] == [(2, 3), (2, 3)]


def test_a_lent_generator_draws_what_a_mode_draws() -> None:
    """Same numbers, same state afterwards, and the default generator as it was, errors or not."""
    parked = torch.default_generator.get_state()
    with RandomMode(seeded()) as mode:
        wanted = F.dropout(torch.ones(100), 0.5), torch.rand(3)
    with LentGenerator(seeded()) as lent:
        found = F.dropout(torch.ones(100), 0.5), torch.rand(3)
    assert all(map(torch.equal, wanted, found))
    assert torch.equal(lent.state, mode.state)
    with pytest.raises(KeyError), LentGenerator(seeded()):
        raise KeyError(torch.rand(1))
    assert torch.equal(torch.default_generator.get_state(), parked)
    Guard().check()  # would wait for ever if the generator were still lent


def test_no_draws_at_all() -> None:
    """From its beginning on, any random op is an error; others are not."""
    with no_draws():
        torch.ones(3).add_(1)
        with pytest.raises(DrawError, match="draws random numbers in its backward"):
            torch.rand(3)


@pytest.mark.parametrize(
    ("planned", "drawn", "microbatches"), [(7, 5, 2), (0, 5, 2), (7, 0, 2), (0, 5, 1)]
)
def test_a_plan_that_says_another_number_is_told_both(
    planned: int, drawn: int, microbatches: int
) -> None:
    """In the first forward, and with the remedy; with one microbatch only none are needed."""
    rng = TaskRng(seeded(), [planned, 3], microbatches)
    with pytest.raises(DrawError, match=f"{drawn} now and {planned} in the plan.*profile and"):
        rng.finish(0, 0, 0, after(rng.state(0, 0, 0), drawn))
