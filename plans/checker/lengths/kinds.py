"""Rule 6 of samples of every length: kinds of rounds are those of one task, their runs add up."""

from collections.abc import Iterator
from itertools import pairwise

from plans.order import judge
from plans.samples import MOST
from plans.schema import Plan, Program, Task
from plans.timing import kinds_of

TOKENS = 256
"""Tokens of a microbatch are a multiple of this, so that bytes grow exactly as they do."""

MOST_KINDS = 64


def lengths_shape(plan: Plan) -> Iterator[str]:
    """Tasks with lengths can be trained by a table of microbatches."""
    for task in plan.tasks:
        if task.lengths is None:
            if task.evaluation_lengths:
                yield f"{task.name}: the samples of its evaluation have lengths, its own have none"
            continue
        yield from _judged(plan, task)
        if task.batch > task.lengths.samples:
            yield (
                f"{task.name}: {task.batch} samples in a step, but there are only "
                f"{task.lengths.samples}"
            )
        if task.microbatches > MOST:
            yield f"{task.name}: {task.microbatches} microbatches, a table knows {MOST}"
        if task.microbatch % TOKENS:
            yield (
                f"{task.name}: microbatches of {task.microbatch} tokens, expected a multiple of "
                f"{TOKENS}"
            )
        yield from _draws(task, task.lengths.token_draws)


def _draws(task: Task, each: tuple[int, ...]) -> Iterator[str]:
    """A forward of any number of tokens has a number of draws."""
    if each and len(each) != len(task.shards):
        yield f"{task.name}: token_draws of {len(each)} shards, expected of {len(task.shards)}"
    for number, (shard, count) in enumerate(zip(task.shards, each, strict=False)):
        if count * task.microbatch > (shard.rng_draws or 0):
            yield (
                f"{task.name}.s{number}: {count} draws a token make {count * task.microbatch} of "
                f"{task.microbatch} tokens, its rng_draws are {shard.rng_draws}"
            )


def _judged(plan: Plan, task: Task) -> Iterator[str]:
    """A task with lengths is evaluated on samples with lengths, always in the same microbatches."""
    if (task.evaluation is None) != (task.evaluation_lengths is None):
        has, lacks = ("is", "has no") if task.evaluation else ("is not", "has")
        yield f"{task.name}: {has} evaluated, but {lacks} lengths of samples for that"
        return
    if task.evaluation_lengths and task.evaluation_lengths.reordered:
        yield f"{task.name}: the samples of its evaluation come in another order than their own"
    first = judge(plan, task.name)
    if first is None or task.evaluation is None:
        return
    for one in plan.programs:
        if one.evaluates and task.name in one.tasks and one.tokens != first.tokens:
            yield f"{one.name}: evaluates {task.name} in other microbatches than {first.name}"
    if (rounds := task.evaluation.batches) * len(first.tokens) > MOST:
        yield (
            f"{task.name}: is evaluated in {rounds} rounds of {len(first.tokens)} microbatches, a "
            f"table knows {MOST}"
        )


def kinds_shape(plan: Plan) -> Iterator[str]:
    """The kinds of rounds of programs and their tokens are possible for their tasks, and not too
    many to prove."""
    for program in plan.programs:
        yield from _kinds(program, [plan.task(name) for name in program.tasks])


def _kinds(program: Program, tasks: list[Task]) -> Iterator[str]:
    measured = [task for task in tasks if task.lengths]
    where = f"{program.name}:"
    if not measured:
        if program.tokens or program.kinds:
            yield f"{where} has tokens or kinds of rounds, but no task of it has lengths"
        return
    (task, *_) = measured
    if len(program.tasks) > 1:
        yield f"{where} trains {len(program.tasks)} tasks, expected {task.name!r} alone, by lengths"
    if program.evaluates and program.kinds:
        yield f"{where} evaluates {task.name} in {1 + len(program.kinds)} kinds of rounds, not one"
    kinds = kinds_of(program)
    if program.kinds and len(kinds) > MOST_KINDS:
        yield f"{where} has {len(kinds)} kinds of rounds, expected at most {MOST_KINDS}"
    for number, kind in enumerate(kinds):
        yield from _tokens(f"{where} kind {number}", kind.tokens, task)


def _tokens(where: str, tokens: tuple[int, ...], task: Task) -> Iterator[str]:
    if not 1 <= len(tokens) <= task.microbatches:
        yield f"{where} has {len(tokens)} microbatches, expected 1 to {task.microbatches}"
    for number, size in enumerate(tokens):
        if size % TOKENS or size > task.microbatch:
            yield (
                f"{where} has {size} tokens in microbatch {number}, expected a multiple of "
                f"{TOKENS} up to {task.microbatch}"
            )


def runs_shape(plan: Plan) -> Iterator[str]:
    """Segments have runs of kinds that their programs have, which add up to their rounds."""
    for index, segment in enumerate(plan.segments):
        if not segment.kinds:
            continue
        program = plan.program(segment.program)
        where, count = f"segment {index}:", 1 + len(program.kinds)
        for number in sorted({kind for kind, _ in segment.kinds if kind >= count}):
            yield f"{where} has rounds of kind {number}, {program.name!r} has {count} kind(s)"
        total = sum(rounds for _, rounds in segment.kinds)
        if total != segment.rounds:
            yield f"{where} its runs have {total} rounds, but it has {segment.rounds}"
        for (one, rounds), (other, more) in pairwise(segment.kinds):
            if one == other:
                yield (
                    f"{where} has runs of {rounds} and {more} rounds of kind {one} in a row, "
                    f"expected one of {rounds + more}"
                )
