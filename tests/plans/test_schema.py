"""The plan file: strict when read, the same when written back, never half written."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.handmade import PLANS, streamed

import plans
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


def test_an_op_takes_one_line() -> None:
    """In the file every op stands on a line of its own, so that a diff shows ops."""
    lines = [line for line in encoded().decode().splitlines() if '"id":' in line]
    assert len(lines) == len(streamed().programs[0].round)
    assert all(line.count('"id":') == 1 for line in lines)


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


def test_a_plan_cannot_be_changed() -> None:
    """Plans are values: setting a field fails."""
    with pytest.raises(AttributeError, match="immutable"):
        streamed().host.bytes = 1  # type: ignore[misc]


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
