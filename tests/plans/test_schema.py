"""The plan file: strict when read, the same when written back, never half written."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support import handmade
from support.handmade import PLANS, streamed
from support.kinded import kinded

import plans
from plans.additions import Addition, added, additions
from plans.schema import Memory, Op, Program
from profiles.codec import pretty, write_atomic
from profiles.errors import FormatError


def encoded() -> bytes:
    return pretty(streamed())


def with_text(old: str, new: str) -> bytes:
    text = encoded().decode()
    assert old in text
    return text.replace(old, new, 1).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        plans.loads(data, "x.json")
    message = str(caught.value)
    assert message.startswith("x.json: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_survives_writing_and_reading(name: str, tmp_path: Path) -> None:
    """Saved and loaded again, a plan is equal, and its second writing is byte-identical."""
    plan = PLANS[name]()
    plans.save(tmp_path / "plan.json", plan)
    again = plans.load(tmp_path / "plan.json")
    assert again == plan
    assert pretty(again) == (tmp_path / "plan.json").read_bytes()


def test_every_truncation_is_refused() -> None:
    """A file cut off anywhere is an error, not a smaller plan."""
    data = encoded().rstrip()
    for length in range(0, len(data), 97):
        refusal(data[:length])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"batch":', '"batches":', "unknown field `batches`"),
        ('"format":"plan"', '"format":"profile"', "this is not a plan file"),
        ('"version":1', '"version":2', "plan version 2 is not supported"),
        ('"slab_bytes":', '"slab_bytes":-', "Expected `int` >= 0"),
        ('"start_us":0', '"start_us":NaN', "malformed"),
        ('"start_us":0', '"start_us":0.5', "Expected `int`, got `float`"),
        ('"start_us":0', '"start_us":"0"', "Expected `int`, got `str`"),
        ('"offset":0', '"offset":null', "Expected `int`, got `null`"),
        ('"stream":"0.h2d"', '"stream":"0.sideways"', "matching regex"),
        ('"id":"a.batch.P0"', '"id":"a.batch.Q0"', "matching regex"),
        ('"space":"0"', '"space":"gpu"', "matching regex"),
        ('"writes":{"batch"', '"writes":{"bach"', "Invalid enum value 'bach'"),
    ],
)
def test_what_the_schema_does_not_know_is_refused(old: str, new: str, said: str) -> None:
    """Unknown fields, versions and values, floats and NaN are errors that say what and where."""
    assert said in refusal(with_text(old, new))


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last step of a write fails, the old file is whole and nothing else is left."""
    target = tmp_path / "plan.json"
    write_atomic(target, b"old")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(FormatError, match="cannot be written: No space left on device"):
        plans.save(target, streamed())
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("arguments", [[], ["x"]])
def test_schemas_are_asked_for_by_name(arguments: list[str]) -> None:
    """Without the name of a format, or with another, the command says which there are."""
    command = [sys.executable, "-m", "plans", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ")
    assert answer.stderr.endswith("; see python -m plans --help\n")


def test_prove_says_what_is_broken() -> None:
    """`prove` raises with every violation and shows the first few."""
    plan = streamed()
    plans.prove(plan)
    with pytest.raises(plans.InvalidPlan, match="breaks 1 rule") as caught:
        plans.prove(msgspec.structs.replace(plan, tasks=_longer(plan)))
    assert caught.value.violations == ["a: all segments together train 4 steps, expected 5"]
    nothing = msgspec.structs.replace(plan.tasks[0], name="b", steps=0)
    found = plans.violations(msgspec.structs.replace(plan, tasks=(*plan.tasks, nothing)))
    assert "b: has 0 steps, expected 1 at least; leave it out" in found


def _longer(plan: plans.Plan) -> tuple[object, ...]:
    return tuple(msgspec.structs.replace(task, steps=task.steps + 1) for task in plan.tasks)


def program(ops: list[Op], devices: int = 2) -> Program:
    """A program of these ops, which is otherwise empty."""
    memory = (Memory(1, 1),) * devices
    return Program("a", memory, ("a",), 0, 1, 1, 0, (), (), tuple(ops), ())


def replicas(*microbatches: tuple[int, ...], shard: int = 0) -> list[Op]:
    """Each device adds such microbatches of a shard; device 0 adds what the others send."""
    ops, item = list[Op](), f"a.s{shard}"
    for device, own in enumerate(microbatches):
        grad = f"grad{shard}.{device}"
        for m in own:
            reads = {"grad": grad} if m != own[0] else {}
            ops.append(Op(f"{item}.B{m}", f"{device}.compute", 0, 1, (), reads, {"grad": grad}))
    for device, own in list(enumerate(microbatches))[1:]:
        there, send = f"other{shard}.{device}", f"{item}.X{device}"
        reads = {"grad": f"grad{shard}.{device}"}
        wait = (f"{item}.B{own[-1]}",)
        ops.append(Op(send, f"{device}.p2p", 0, 1, wait, reads, {"grad": there}))
        both, mine = {"grad": f"grad{shard}.0", "other": there}, {"grad": f"grad{shard}.0"}
        ops.append(Op(f"{item}.R{device}", "0.compute", 0, 1, (send,), both, mine))
    ops.append(Op(f"{item}.U0", "0.compute", 0, 1, (), {"grad": f"grad{shard}.0"}, {}))
    return ops


def test_replicas_are_added_as_they_come() -> None:
    assert additions(handmade.parallel()) == {"a": (Addition(0, 2, "(0)+(1)"),)}
    made = program(replicas((0, 3), (1, 4), (2,)), 3)
    assert added(made, "a", [(0, 5)]) == (Addition(0, 5, "((0+3)+(1+4))+(2)"),)


def test_one_device_for_each_layer_adds_in_the_ordinary_order() -> None:
    """Nothing is said of it, on however many devices the task is trained."""
    for plan in (handmade.pipeline(), handmade.streamed(), handmade.gang()):
        assert additions(plan) == {}


def test_the_order_of_the_list_does_not_matter() -> None:
    """Ops come in the order of their streams and edges, wherever they stand."""
    ops = replicas((0, 2), (1, 3))
    later = sorted(ops, key=lambda op: op.stream, reverse=True)
    assert [op.id for op in later] != [op.id for op in ops]
    for listed in (ops, later):
        assert added(program(listed), "a", [(0, 1)]) == (Addition(0, 1, "(0+2)+(1+3)"),)


def test_cuts_within_layers_that_are_added_alike_do_not_matter() -> None:
    """Two shards side by side, or one; which of two sums is added to the other, as the bits are
    the same. What fewer devices train is told apart."""
    alike = program([*replicas((0,), (1,)), *replicas((0,), (1,), shard=1)])
    assert added(alike, "a", [(0, 3), (3, 5)]) == (Addition(0, 5, "(0)+(1)"),)
    other = program([*replicas((0,), (1,)), *replicas((1,), (0,), shard=1)])
    assert added(other, "a", [(0, 3), (3, 5)]) == (Addition(0, 5, "(0)+(1)"),)
    mixed = program([*replicas((0,), (1,)), *replicas((0, 1), shard=1)])
    assert added(mixed, "a", [(0, 3), (3, 5)]) == (Addition(0, 3, "(0)+(1)"),)


def test_programs_of_several_kinds_have_no_one_order() -> None:
    """Which replica has which microbatches differs from round to round."""
    plan = kinded("parallel", [[512, 512]] * 2, ((0, 1), (1, 1)))
    assert additions(plan) == {}
    (program,) = plan.programs
    assert additions(replace(plan, programs=(replace(program, kinds=()),)))


def test_programs_that_evaluate_add_nothing() -> None:
    """Whatever they are called."""
    plan = handmade.parallel()
    programs = tuple(replace(program, evaluates=True) for program in plan.programs)
    assert additions(replace(plan, programs=programs)) == {}
