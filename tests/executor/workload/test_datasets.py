"""Loaders of datasets: the batch of a step is the same whoever asks for it, and when."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.photos import Photos, Plain
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from executor.errors import RunError, WorkloadError
from executor.numerics import OwnRandomness
from executor.workload import Loader, loader, samples_of
from executor.workload.datasets import _AHEAD

COUNT, BATCH = 11, 4


class Numbers(Dataset[int]):
    """Its samples are their numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> int:
        return number


class Stream(IterableDataset[int]):
    """Can be read from the begin only."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(COUNT))


class Seeking(Stream):
    """Can be read from any sample on, as a streamed dataset of Hugging Face, and draws."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        return ((n, torch.rand(1)) for n in range(self.first, COUNT))

    def skip(self, count: int) -> "Seeking":
        return Seeking(self.first + count)


def drawing(samples: list[int]) -> Tensor:
    """A collate that mixes samples by chance."""
    return torch.tensor(samples) + torch.rand(len(samples))


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def generators() -> tuple[Any, ...]:
    state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), state[1].tolist(), state[2:]


@contextmanager
def reading_ahead(made: Loader) -> Iterator[Loader]:
    """The loader while its worker processes read."""
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def ahead() -> Iterator[Loader]:
    """Of photos, one of which is broken."""
    with reading_ahead(loader(Photos(COUNT, broken=9), BATCH, workers=2)) as made:
        yield made


def test_an_epoch_has_each_sample_once_in_an_order_of_its_own() -> None:
    """Whole batches: the rest is dropped, another one in another epoch."""
    made = loader(Numbers(), BATCH)
    assert len(made) == COUNT // BATCH
    rows = [made(2 * n).tolist() + made(2 * n + 1).tolist() for n in range(5)]
    assert all(len(set(row)) == 2 * BATCH and set(row) <= {*range(COUNT)} for row in rows)
    assert len({tuple(row) for row in rows}) == 5
    assert {n for row in rows for n in row} == {*range(COUNT)}


def test_the_seed_alone_says_the_order() -> None:
    """Not the generators of the process, nor what was asked before."""
    forth, back = loader(Numbers(), BATCH, seed=3), loader(Numbers(), BATCH, seed=3)
    batches = [forth(step) for step in range(6)]
    torch.manual_seed(5)
    assert same(batches, [back(step) for step in reversed(range(6))][::-1])
    assert not same(batches, [loader(Numbers(), BATCH, seed=4)(step) for step in range(6)])


def test_without_shuffling_it_is_a_dataloader_that_drops_the_rest() -> None:
    data = TensorDataset(torch.randn(COUNT, 3), torch.arange(COUNT))
    known = [*DataLoader(data, BATCH, drop_last=True)]
    made = loader(data, BATCH, shuffle=False)
    assert all(same(made(step), batch) for step, batch in enumerate(known * 2))


def test_draws_of_a_sample_are_its_own() -> None:
    """By the seed, the epoch and its number, whatever was drawn before; those of a collate too."""
    made = loader(Photos(BATCH), BATCH, seed=1, shuffle=False)
    first, second = made(0), made(1)
    assert not same(first, second)
    torch.manual_seed(9)
    random.seed(9)
    assert same(loader(Photos(BATCH), BATCH, seed=1, shuffle=False)(1), second)
    mixing = loader(Numbers(), BATCH, shuffle=False, collate=drawing)
    assert same([mixing(0), mixing(1)], [mixing(0), mixing(1)])


def test_nothing_of_its_draws_is_seen_outside() -> None:
    """The generators go on as if nobody had drawn, and a run that watches them does not mind."""
    made, before = loader(Photos(COUNT), BATCH), generators()
    free = made(0)
    with OwnRandomness():
        assert same(made(0), free)
    assert generators() == before


def test_worker_processes_make_the_same_batches(ahead: Loader) -> None:
    """Step after step, and after a jump back or forth."""
    alone = loader(Photos(COUNT, broken=9), BATCH)
    steps = [n for n in range(20) if 9 not in alone._numbers(n // 2)[n % 2 * 4 : n % 2 * 4 + 4]]
    for step in [*steps, *steps[3:5], *steps[:2], *steps[3:5], steps[-1]]:
        assert same(ahead(step), alone(step)), step


@pytest.mark.parametrize("where", ["here", "ahead"])
def test_a_sample_that_cannot_be_read_is_named(where: str, ahead: Loader) -> None:
    made = ahead if where == "ahead" else loader(Photos(COUNT, broken=9), BATCH)
    with pytest.raises(RunError, match=r"^sample 9 of Photos: ValueError: not a picture$"):
        [made(step) for step in range(2)] and [made(step) for step in range(2, 4)]


def test_processes_read_what_followed_before(tmp_path: Path) -> None:
    """An evaluation's batches come again and again: when the last is there the first is ahead."""
    made = loader(Photos(COUNT, seen=tmp_path / "seen"), BATCH, shuffle=False, workers=1)
    with reading_ahead(made) as batch:
        for _ in range(9):
            for step in range(2):
                batch(step)
        first = [*map(int, (tmp_path / "seen").read_text().split())][::BATCH]
    assert all(one != next for one, next in pairwise(first[2 * _AHEAD :])), first


def test_tasks_with_one_loader_read_once(tmp_path: Path) -> None:
    """Where they train side by side."""
    made = loader(Photos(COUNT, seen=tmp_path / "seen"), BATCH, workers=1)
    with reading_ahead(made) as batch:
        for step in range(6):
            assert same(batch(step), batch(step))
    assert len((tmp_path / "seen").read_text().split()) <= (6 + 2 * _AHEAD) * BATCH


def test_a_process_that_is_gone_ends_the_run() -> None:
    """In a line, and soon."""
    made = loader(Photos(COUNT), BATCH, workers=1)
    told = "^the worker processes of the loader of Photos: "
    with reading_ahead(made) as batch:
        batch(0)
        assert made._reader is not None
        made._reader._batches._workers[0].kill()
        with pytest.raises(RunError, match=told):
            [batch(step) for step in range(1, 9)]


def test_what_cannot_be_sent_to_a_process_is_said() -> None:
    made = loader(Numbers(), BATCH, collate=lambda samples: samples, workers=1)
    with (
        reading_ahead(made) as batch,
        pytest.raises(RunError, match=r"loader of Numbers: .*pickle"),
    ):
        batch(0)


def test_an_iterable_dataset_that_can_skip_is_a_row_of_samples() -> None:
    """Also when a run goes on in its middle; where it ends there are no batches."""
    whole, later = (loader(Seeking(), BATCH, shuffle=False) for _ in range(2))
    batches = [whole(step) for step in range(2)]
    assert torch.equal(batches[1][0], torch.arange(BATCH, 2 * BATCH))
    assert same(later(1), batches[1])
    assert same(whole(1), batches[1])
    with pytest.raises(IndexError, match="Seeking ends before sample 11"):
        whole(2)
    assert same(whole(0), batches[0])
    with pytest.raises(TypeError, match="Seeking is iterable and has no length"):
        len(whole)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: loader(Numbers(), 0), "loader of Numbers: batch_size is 0; it must be a whole"),
        (lambda: loader(Numbers(), 4, workers=-1), "workers is -1; it must be a whole number"),
        (lambda: loader(Numbers(), 12), "it has 11 samples, and a batch 12; lower batch_size"),
        (lambda: loader(Stream(), 4), "loader of Stream: it has neither __len__ and __getitem__"),
        (lambda: loader(Seeking(), 4), "it is iterable, so its samples come in their own order"),
        (lambda: loader(Seeking(), 4, shuffle=False, workers=2), "leave workers at 0 or 1"),
        (lambda: loader(islice([1], 1), 4), "loader of islice: it has neither"),
    ],
)
def test_what_is_no_data_is_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(WorkloadError, match=told):
        make()


def test_samples_are_counted_where_they_have_numbers() -> None:
    assert samples_of(loader(Plain(COUNT), BATCH)) == COUNT
    assert samples_of(loader(Seeking(), BATCH, shuffle=False)) is None
    assert samples_of(lambda step: step) is None
