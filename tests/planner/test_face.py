"""The planner from Python: the example of its README, and the same plan as from the command."""

from pathlib import Path

import pytest
from support import synthetic
from support.cli import planner_cli, succeeded

import planner
from planner import Options, build, face, load, read_problem
from profiles.codec import pretty, write_atomic
from profiles.errors import FormatError

pytestmark = pytest.mark.usefixtures("quick")
ROOT = Path(__file__).parents[2]


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes a plan, proves it and describes it."""
    text = (ROOT / "planner/README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert capsys.readouterr().out.startswith("plan by gantry, seed 0: makespan ")


def test_every_name_of_the_face_is_there_and_documented() -> None:
    """In the package itself too."""
    for name in (name for name in vars(face) if not name.startswith("_")):
        assert getattr(planner, name).__doc__, name
    with pytest.raises(AttributeError, match="nothing"):
        _ = planner.nothing


def test_the_command_makes_the_plan_that_python_makes(tmp_path: Path) -> None:
    """With every sort of wish, to the byte, also what the plan says of its inputs."""
    tasks = [synthetic.task(name, layers=2, steps=3, batch=4) for name in "ab"]
    profile = tmp_path / "p.json"
    write_atomic(profile, pretty(synthetic.profile(*tasks, usable_bytes=32 << 20)))
    flags = ("--devices", "2", "--h2d", "2GB/s", "--objective", "completion", "--priority", "b=3")
    flags += ("--start", "a=1s", "--deadline", "b=1h", "--segment-steps", "2")
    succeeded(planner_cli("build", str(profile), "-o", str(tmp_path / "plan.json"), *flags))
    asked = Options(
        devices=2,
        h2d=2 * 10**9,
        objective="completion",
        priority={"b": 3},
        start={"a": 10**6},
        deadline={"b": 3600 * 10**6},
        segment_steps=2,
    )
    plan = build(read_problem(str(profile), asked))
    assert plan == load(str(tmp_path / "plan.json"))
    assert plan.provenance["deadline b"] == "3600000000 us"
    assert set(plan.inputs) == {"profile"}


def test_wishes_that_do_not_go_together_are_refused() -> None:
    """As by the command, with the flags that would do."""
    sample = str(ROOT / "profiles/sample.json")
    with pytest.raises(FormatError, match="--objective completion"):
        read_problem(sample, Options(priority={"a": 2}))
    with pytest.raises(FormatError, match="--devices says 2 numbers but there is 1 profile"):
        read_problem(sample, Options(devices=(1, 2)))
