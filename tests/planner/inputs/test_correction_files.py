"""Corrections as files: written by compare, read by build, and refused where they do not belong."""

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from shutil import copytree

import pytest
from support.cli import nothing_written, planner_cli, refused, succeeded
from support.truth import as_run, log_of, truth, wronged

import plans
import profiles
from planner.inputs import corrections
from plans.runlog import encode
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("quick")

QUICK = ("--policy", "hydra")  # where any plan will do


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """profile.json, its plan.json, run.jsonl in which all took three times as long, and c.json."""
    made = tmp_path_factory.mktemp("written")
    with chdir(made):
        profiles.save("profile.json", truth())
        succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *QUICK))
        taught("plan.json", truth(), 3, "c.json")
    return made


@pytest.fixture
def folder(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files, for one test to change."""
    copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def taught(plan: str, believed: Profile, factor: float, output: str) -> None:
    """Corrections from a run in which everything took `factor` times what the profile says."""
    true = wronged(truth(), compute=lambda layer: factor, link=1 / factor, update=factor)
    digest = plans.sha256(Path(plan).read_bytes())
    log = log_of(as_run(plans.load(plan), believed, true), digest)
    ending = [log.end] if log.end else []
    Path("run.jsonl").write_bytes(encode([log.header, *log.ops, *ending]))
    command = ("compare", plan, "run.jsonl", "--write-corrections", output)
    answer = succeeded(planner_cli(*command))
    assert f"wrote {output}" in answer.err


def corrected_by(*files: str) -> Profile:
    digest = plans.sha256(Path("profile.json").read_bytes())
    return corrections.chain(profiles.load("profile.json"), digest, files)[0]


def test_plan_built_with_corrections_names_them_and_is_sound(folder: Path) -> None:
    """The plan's inputs hold the file's hash, the checker accepts it, and it predicts the run."""
    flags = ("--corrections", "c.json")
    succeeded(planner_cli("build", "profile.json", "-o", "second.json", *flags, *QUICK))
    succeeded(planner_cli("check", "second.json"))
    first, second = plans.load("plan.json"), plans.load("second.json")
    digest = plans.sha256(Path("c.json").read_bytes())
    assert second.inputs == {**first.inputs, "corrections": digest}
    # all but latencies took three times as long
    ratio = second.prediction.makespan_us / first.prediction.makespan_us
    assert 2.8 < ratio < 3.1


def test_second_corrections_go_on_top_of_the_first(folder: Path) -> None:
    """A run of the corrected plan, where all took twice as long as the first run, adds to it."""
    once = ("--corrections", "c.json")
    succeeded(planner_cli("build", "profile.json", "-o", "second.json", *once, *QUICK))
    taught("second.json", corrected_by("c.json"), 6, "d.json")
    twice = (*once, "--corrections", "d.json")
    succeeded(planner_cli("build", "profile.json", "-o", "third.json", *twice, *QUICK))
    digests = [plans.sha256(Path(name).read_bytes()) for name in ("c.json", "d.json")]
    third = plans.load("third.json")
    assert [third.inputs[r] for r in ("corrections", "corrections-2")] == digests
    forward = [
        profile.tasks[0].layers[0].costs[0].forward.median_us
        for profile in (truth(), corrected_by("c.json"), corrected_by("c.json", "d.json"))
    ]
    assert forward == pytest.approx([forward[0], 3 * forward[0], 6 * forward[0]], rel=0.01)
    both = corrected_by("c.json", "d.json").provenance["corrected"]
    assert both.startswith(corrected_by("c.json").provenance["corrected"] + ", log ")


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "foreign": (
        lambda data: data.replace(b'"corrections"', b'"plan"', 1),
        "foreign.json: this is not a corrections file (format is 'plan')",
    ),
    "negative": (lambda data: data.replace(b'"samples":', b'"samples":-'), "Expected `int` >= 1"),
    "last": (lambda data: data.replace(b'"11":', b'"last":'), "Expected `int`, got `str`"),
}


REFUSED = {  # ratios that would be of nothing, and files that are none
    "profile.json --corrections d.json": "d.json: its plan was built from",
    "profile.json --corrections d.json --corrections c.json": "its plan was built from",
    "profile.json --corrections c.json --corrections c.json": "its plan was built from",
    "other.json --corrections c.json": "c.json: its plan was built from profile ",
    "profile.json --corrections c.json --h2d 3GB/s": (
        "its plan was built with other rates of links; give the same --h2d"
    ),
    "profile.json --corrections no.json": "no.json: cannot be read",
} | {f"profile.json --corrections {case}.json": text for case, (_, text) in BROKEN.items()}


@pytest.fixture(scope="module")
def more(written: Path) -> None:
    """Also d.json, of a plan built with c.json; other.json, measured again; and broken files."""
    with chdir(written):
        once = ("--corrections", "c.json")
        succeeded(planner_cli("build", "profile.json", "-o", "second.json", *once, *QUICK))
        taught("second.json", corrected_by("c.json"), 6, "d.json")
        profiles.save("other.json", truth(seed=1))
        whole = Path("c.json").read_bytes()
        for case, (damage, _) in BROKEN.items():
            Path(f"{case}.json").write_bytes(damage(whole))
            assert damage(whole) != whole


@pytest.mark.usefixtures("more", "folder")
@pytest.mark.parametrize("call", REFUSED)
def test_corrections_are_refused_in_one_line(call: str) -> None:
    """Of another plan, out of turn, damaged or not there: exit code 2, the file, and no plan."""
    with nothing_written():
        answer = planner_cli("build", *call.split(), "-o", "x.json", *QUICK)
    refused(answer, 2, REFUSED[call])


def test_corrections_have_no_place_where_the_log_is(folder: Path) -> None:
    """The command reads it."""
    with nothing_written():
        clash = planner_cli("compare", "plan.json", "run.jsonl", "--write-corrections", "run.jsonl")
    refused(clash, 2, "run.jsonl: cannot be written: this command reads it")


def test_written_corrections_are_read_as_they_were(folder: Path) -> None:
    """Reading and writing again gives the same bytes, and there is no float in them."""
    data = Path("c.json").read_bytes()
    corrections.save("again.json", corrections.loads(data))
    assert Path("again.json").read_bytes() == data
    assert b"." not in data.replace(b"synthetic", b"")
