"""Plans of tasks with lengths that are evaluated."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from support import mixed, synthetic
from support.texts import built, text_task

from planner import Infeasible, Problem
from planner.inputs import PackingName, parse_layout
from planner.packing import Curve, PipelineType, Pool, pack_step
from planner.sequences.intervals import Interval, Offer, divided
from planner.sequences.mixes import best_mix
from plans import samples, violations
from plans.order import judge
from plans.samples import table_path
from plans.schema import Plan
from profiles.errors import FormatError
from profiles.lengths import describe, held_out
from profiles.schema import Evaluation
from tests.planner.sequences.test_switching import asked as phased

pytestmark = pytest.mark.usefixtures("quick")

STEPS, BATCH, EVERY = 12, 8, 5
FORMULA = (2_000_000, 3_000_000, 50_000)
RNG = np.random.default_rng(0)
LENGTHS, HELD = (
    np.minimum(3000, RNG.lognormal(6, 1, count)).astype(np.uint32) + 8 for count in (70, 1500)
)


def asked(
    held: NDArray[np.uint32] | None = HELD,
    *,
    room: int = 1 << 30,
    devices: int = 1,
    packing: PackingName = "balanced",
    why_not: str = "",
) -> Problem:
    task = text_task(lengths=LENGTHS, batch=BATCH, steps=STEPS, formula=FORMULA)
    lengths = {"text": LENGTHS}
    if held is not None:
        said = describe(held, why_not)
        task = structs.replace(task, evaluation=Evaluation(EVERY, 1), evaluation_lengths=said)
        lengths[held_out("text")] = held
    if why_not and task.lengths:
        task = structs.replace(task, lengths=structs.replace(task.lengths, why_not=why_not))
    profile = synthetic.profile(task, usable_bytes=room)
    one = Problem.of(profile, devices=devices, device_bytes=room, host_bytes=None)
    return replace(one, packing=packing, lengths=lengths)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Plan]:
    """With evaluation, and without."""
    folder = tmp_path_factory.mktemp("both")
    return built(asked(), folder), built(asked(None), folder)


def row(folder: Path) -> NDArray[np.uint16]:
    """The microbatch of each sample, numbered through the rounds of an evaluation."""
    return np.fromfile(table_path(folder / "plan.json", held_out("text")), samples.ENTRY)


@pytest.mark.parametrize(
    ("devices", "packing"), [(1, "pad"), (1, "fixed"), (2, "ffd"), (3, "balanced")]
)
def test_evaluations_have_segments_and_a_sound_table(
    devices: int, packing: PackingName, tmp_path: Path
) -> None:
    """On all devices, which have about as much to do; where they are due, and as long as the plan
    says."""
    problem = asked(devices=devices, packing=packing)
    plan = built(replace(problem, layout=parse_layout(f"1x{devices}")), tmp_path)
    (task,), program = plan.tasks, judge(plan, "text")
    assert task.evaluation
    assert program
    trained = [(s.program == program.name, s.rounds) for s in plan.segments]
    once = (True, task.evaluation.batches)
    assert trained == [(False, 5), once, (False, 5), once, (False, 2)]
    assert program.devices == devices
    size = len(program.tokens)
    assert size <= 8 * devices
    tokens = np.bincount(row(tmp_path), HELD, size * task.evaluation.batches)
    if packing == "balanced":
        each = tokens.reshape(-1, devices, size // devices).sum(axis=(0, 2))
        assert each.max() <= 1.1 * each.min()
        assert tokens.sum() >= 0.8 * task.evaluation.batches * sum(program.tokens)


def test_longer_samples_than_those_of_training_have_room(tmp_path: Path) -> None:
    plan = built(asked(np.array([12_000, 3, 17], np.uint32)), tmp_path)
    program = judge(plan, "text")
    assert program
    assert max(program.tokens) >= 12_000 > max(plan.programs[0].tokens)


def test_models_that_mix_sequences_have_one_in_each_microbatch(tmp_path: Path) -> None:
    built(asked(packing="auto", why_not="its convolution reaches across"), tmp_path)
    assert len(set(row(tmp_path).tolist())) == len(HELD)


def test_the_memory_that_a_refusal_names_would_do(tmp_path: Path) -> None:
    held = np.array([20_000], np.uint32)
    with pytest.raises(Infeasible, match="its longest sample has 20000 tokens") as refused:
        built(asked(held, room=1 << 20), tmp_path)
    assert built(asked(held, room=refused.value.smallest), tmp_path)


def test_more_microbatches_than_a_table_knows_are_refused(tmp_path: Path) -> None:
    held = np.full(70_000, 3, np.uint32)
    text = "text: its evaluation has 70000 microbatches, a table has numbers for 65536"
    with pytest.raises(FormatError, match=text):
        built(asked(held, packing="auto", why_not="its convolution reaches across"), tmp_path)


def test_steps_of_two_mixes_are_evaluated_by_one_program(tmp_path: Path) -> None:
    """On all devices, also between steps of either mix; the samples are longer than those of the
    steps that the other mix has."""
    one = phased()
    (task,) = one.tasks
    said = {"evaluation": Evaluation(3, 1), "evaluation_lengths": describe(HELD)}
    held = {**one.lengths, held_out(task.name): HELD}
    plan = built(replace(one.alike(tasks=(structs.replace(task, **said),)), lengths=held), tmp_path)
    mixes = {program.name for program in plan.programs if not program.evaluates}
    turns = [s.program for s in plan.segments]
    assert len(mixes) == 2 == len(set(turns) & mixes)
    assert turns.count("text.eval") == 3
    assert sum(s.rounds for s in plan.segments if s.program in mixes) == task.steps


def test_times_of_plans_hold_their_evaluations(both: tuple[Plan, Plan]) -> None:
    """All segments in a row take as long as is predicted, no less than the bound, which knows of
    them."""
    one, other = (plan.prediction for plan in both)
    assert other.makespan_us < one.lower_bound_us <= one.makespan_us


def _offers(dice: np.random.Generator) -> list[Offer]:
    return [
        Offer(
            int(dice.integers(1, 4)),
            Curve(float(dice.uniform(0, 0.02)), float(dice.uniform(0.5, 3)), 10.0),
            int(dice.integers(1, 4)),
            int(dice.integers(100, 600)),
        )
        for _ in range(3)
    ]


def _took(offers: list[Offer], lengths: np.ndarray, parts: tuple[Interval, ...]) -> float:
    """The time of a division, added up by itself."""
    slowest = 0.0
    for above, to, number, pipelines in parts:
        one = offers[number]
        own = [int(length) for length in lengths if above < length <= to]
        times = [one.curve.square * s * s + one.curve.linear * s + one.curve.fixed for s in own]
        if max(own, default=0) > one.longest:
            return float("inf")
        whole = sum(times) + (one.depth - 1) * max(times, default=0)
        slowest = max(slowest, whole / pipelines)
    return slowest


def _all(
    offers: list[Offer], ends: list[int], devices: int, above: int = 0
) -> Iterator[tuple[Interval, ...]]:
    """Every division of these lengths into intervals."""
    if not ends:
        yield ()
    for first in range(1, len(ends) + 1):
        for number, one in enumerate(offers):
            for pipelines in range(1, devices // one.devices + 1):
                left = devices - pipelines * one.devices
                for rest in _all(offers, ends[first:], left, ends[first - 1]):
                    yield (Interval(above, ends[first - 1], number, pipelines), *rest)


@pytest.mark.parametrize("seed", range(6))
def test_no_division_is_better(seed: int) -> None:
    """Of all intervals, offers and numbers of pipelines; rounded up to a µs."""
    dice = np.random.default_rng(seed)
    offers, lengths = _offers(dice), dice.integers(1, 500, 7)
    devices = int(dice.integers(2, 6))
    lengths = dice.choice(lengths[:4], 9)
    ends = np.unique(lengths).tolist()
    best = min(_took(offers, lengths, one) for one in _all(offers, ends, devices))
    found = divided(offers, devices, lengths)
    if found is None:
        assert best == float("inf")
        return
    assert _took(offers, lengths, found.intervals) <= found.us
    assert best <= found.us <= best + 1 + 1e-6
    assert sum(offers[one.offer].devices * one.pipelines for one in found.intervals) <= devices


def test_a_length_that_no_offer_holds_has_no_division() -> None:
    one = Offer(4, Curve(0.0, 1.0), 1, 100)
    assert divided([one], 4, np.array([101])) is None
    assert divided([one], 3, np.array([50])) is None
    assert divided([one], 4, np.array([100])) is not None


OFFERS = [
    Offer(1, Curve(0.002, 1.0, 30.0), 1, 512),
    Offer(2, Curve(0.0011, 0.55, 30.0), 1, 1024),
    Offer(2, Curve(0.001, 0.5, 20.0), 2, 1280),
    Offer(4, Curve(0.0007, 0.35, 40.0), 1, 4096),
]


def _steps(seed: int, count: int = 4, most: int = 4096) -> list[np.ndarray]:
    drawn = np.random.default_rng(seed).lognormal(5, 1.1, (count, 60))
    return list(np.clip(drawn, 1, most).astype(np.int64))


def _all_of_mixes(devices: int, at: int = 0) -> Iterator[tuple[int, ...]]:
    """Every number of pipelines of each offer that so many devices have."""
    if at == len(OFFERS):
        yield ()
        return
    for count in range(devices // OFFERS[at].devices + 1):
        for rest in _all_of_mixes(devices - count * OFFERS[at].devices, at + 1):
            yield (count, *rest)


@pytest.mark.parametrize(("seed", "most"), [(0, 500), (1, 4096)])
def test_few_mixes_are_better(seed: int, most: int) -> None:
    """Of all that eight devices have room for: at most 2 % longer than the best."""
    steps = _steps(seed, 3, most)
    longest, times = max(int(own.max()) for own in steps), dict[tuple[int, ...], int]()
    for counts in _all_of_mixes(8):
        types = [
            PipelineType(one.curve, one.depth, one.longest, count)
            for one, count in zip(OFFERS, counts, strict=True)
            if count
        ]
        if types and Pool(tuple(types)).longest >= longest:
            pool = Pool(tuple(types))
            times[counts] = sum(max(pack_step(pool, own, "balanced").us) for own in steps)
    found = best_mix(OFFERS, 8, steps, "balanced")
    assert found
    assert times[found] <= 1.02 * min(times.values())


def test_no_mix_holds_what_no_offer_holds() -> None:
    assert best_mix(OFFERS, 8, [np.array([5000])], "balanced") is None
    assert best_mix(OFFERS, 3, [np.array([4000])], "balanced") is None


@pytest.mark.parametrize("seed", range(8))
def test_a_round_without_the_last_microbatches_of_pipelines_is_sound(seed: int) -> None:
    """In random mixes and modes the checker proves the rounds of any such kind by themselves."""
    rng = Random(seed)
    _, counts, strategy = mixed.drawn(rng)
    kept, first = list[int](), 0
    for count in counts:
        kept += range(first, first + rng.randint(1, count))
        first += count
    assert violations(mixed.alone(strategy, kept)) == []
