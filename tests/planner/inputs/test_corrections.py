"""A wrong profile, corrected by what a run showed, predicts the next run."""

import random
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic, timetables
from support.cli import nothing_written, planner_cli, refused, succeeded
from support.noded import on_nodes
from support.piped import piped
from support.piped import planned as pipe_plan
from support.truth import as_run, log_of, truth, wronged

import plans
import profiles
from planner import Problem, build
from planner.inputs import corrections
from planner.inputs.corrections import Corrections, Direction, LinkRatio, apply
from planner.inputs.residuals import residuals
from plans.ops import parse_id
from plans.runlog import RunLog, encode
from plans.schema import Plan
from profiles.schema import Profile

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64
PPM = 1_000_000


def planned(profile: Profile) -> Plan:
    """Any plan will do; this policy makes one at once."""
    asked = Problem.of(profile, devices=1, device_bytes=None, host_bytes=None)
    return build(asked, profile_sha256=HASH, policy="hydra", seconds=10)


def learned(plan: Plan, log: RunLog) -> Corrections:
    return residuals(plan, log, plan_sha256=HASH, log_sha256=HASH)


def error(plan: Plan, believed: Profile, true: Profile) -> float:
    """How far the predicted makespan is from that of a run where `true` is right."""
    actual = as_run(plan, believed, true).prediction.makespan_us
    return abs(plan.prediction.makespan_us - actual) / actual


def errors(wrong: Profile, true: Profile, noise: float) -> tuple[float, float]:
    """The error of a plan of the wrong profile, and of one of the corrected profile."""
    first = planned(wrong)
    log = log_of(as_run(first, wrong, true), HASH, noise=noise)
    corrected = apply(wrong, learned(first, log))
    return error(first, wrong, true), error(planned(corrected), corrected, true)


@settings(max_examples=3)
@given(
    st.integers(0, 10**6),
    st.floats(0.25, 4).filter(lambda factor: not 0.7 < factor < 1.4),
    st.floats(0.25, 4),
    st.floats(0.25, 4),
)
def test_whatever_was_wrong_the_second_prediction_is_closer(
    seed: int, compute: float, link: float, update: float
) -> None:
    """Random factors on every layer, link and update: what is left of the error is small."""
    rng = random.Random(seed)
    factors = [compute * rng.uniform(0.7, 1.4) for _ in range(12)]
    true = truth(seed)
    wrong = wronged(true, compute=lambda layer: factors[layer], link=link, update=update)
    before, after = errors(wrong, true, noise=0.05)
    assert after < max(0.06, before / 4)


def test_right_profile_stays_as_it_is() -> None:
    """A run that went as predicted teaches that nothing is to be corrected."""
    true = truth()
    plan = planned(true)
    found = learned(plan, log_of(plan, HASH))
    assert {r for by in found.tasks.values() for ones in by.values() for r in ones.values()} == {
        PPM
    }
    lines = {way: (link.ratio_ppm, link.offset_us) for way, link in found.links.items()}
    assert lines == dict.fromkeys(("h2d", "d2h"), (PPM, 0))
    assert structs.replace(apply(true, found), provenance={}) == true


def test_every_layer_gets_its_shards_ratio_and_a_wrong_shard_changes_no_other() -> None:
    """F's of shard 1 twice as long: layer 1's forward doubles, all else stays."""
    plan = timetables.plan(rounds=3, shards=3, microbatches=2)
    log = timetables.log(plan, percent=100)
    slow = tuple(
        structs.replace(op, end_us=2 * op.end_us - op.start_us)
        if op.op.startswith("a.s1.F")
        else op
        for op in log.ops
    )
    found = learned(plan, structs.replace(log, ops=slow)).tasks["a"]
    assert found["forward"] == {0: PPM, 1: 2 * PPM}
    assert found["recompute_backward"] == dict.fromkeys(range(3), PPM)


def with_graph(plan: Plan) -> Plan:
    """Task a keeps or packs the graph of all shards but its last."""
    a, *others = plan.tasks
    *body, last = a.shards
    kept = [
        structs.replace(shard, activations="offload" if i else "saved")
        for i, shard in enumerate(body)
    ]
    return structs.replace(plan, tasks=(structs.replace(a, shards=(*kept, last)), *others))


def test_kept_graphs_correct_recomputation_by_forward_and_backward_by_itself() -> None:
    """F twice and B three times as long where graphs are kept: recompute + backward is 2r + 3b.

    Updates on the host, four times as long, say nothing of those on a device."""
    plan = with_graph(timetables.plan(rounds=2, shards=3, microbatches=2))
    log = timetables.log(plan, percent=100)
    ops = tuple(
        structs.replace(op, end_us=op.start_us + (op.end_us - op.start_us) * by)
        for op in log.ops
        for by in [{"F": 2, "B": 3, "U": 4}.get(parse_id(op.op).kind, 1)]
    )
    found = learned(plan, structs.replace(log, ops=ops))
    assert {what: list(layers) for what, layers in found.tasks["a"].items()} == {
        "recompute": [0, 1],
        "backward": [0, 1],
        "recompute_backward": [2],
        "update_host": [0, 1, 2],
    }
    chain = synthetic.task("a", layers=3, batch=8, heterogeneous=False)
    profile = synthetic.profile(chain, usable_bytes=1 << 20)
    before, after = profile.tasks[0].layers, apply(profile, found).tasks[0].layers
    old, new, last = before[0].costs[0], after[0].costs[0], after[2].costs[0]
    assert new.forward.median_us == 2 * old.forward.median_us
    assert new.backward.median_us == 3 * old.backward.median_us
    recompute = old.recompute_backward.median_us - old.backward.median_us
    whole = new.recompute_backward.median_us
    assert whole == pytest.approx(2 * recompute + 3 * old.backward.median_us, abs=1)
    assert last.recompute_backward.median_us == 3 * old.recompute_backward.median_us
    assert last.backward.median_us == 3 * old.backward.median_us
    assert last.forward == old.forward
    assert after[0].update_host.median_us == 4 * before[0].update_host.median_us
    assert after[0].update_device == before[0].update_device


def links(*pairs: tuple[int, int], **fields: object) -> dict[Direction, LinkRatio]:
    """What prefetches of (predicted, actual) µs, with these `fields`, teach about links."""
    plan = timetables.tiny()
    first = structs.replace(plan.programs[0].round[0], **fields)
    ops = tuple(
        structs.replace(first, id=f"a.s0.P{i}", start_us=0, end_us=predicted)
        for i, (predicted, _) in enumerate(pairs)
    )
    program = structs.replace(plan.programs[0], round=ops)
    plan = structs.replace(plan, programs=(program,))
    log = timetables.log(plan)
    records = tuple(
        structs.replace(record, start_us=0, end_us=actual)
        for record, (_, actual) in zip(log.ops, pairs, strict=True)
    )
    return learned(plan, structs.replace(log, ops=records)).links


def copies(*pairs: tuple[int, int]) -> LinkRatio:
    """What prefetches of (predicted, actual) µs teach about their link."""
    return links(*pairs)["h2d"]


def test_casts_teach_nothing_about_the_link() -> None:
    """A prefetch that makes parameters from masters counts for casts, not for copies."""
    roles = {"reads": {"state": "a.s0.state"}, "writes": {"param": "0/s0.param"}}
    assert list(links((100, 300), **roles)) == ["cast"]
    assert list(links((100, 300))) == ["h2d"]


def test_latency_and_rate_of_a_link_are_told_apart() -> None:
    """Copies of many sizes, half the rate and 30 µs more: a line, not a mean ratio."""
    found = copies(*((us, 2 * us + 30) for us in (100, 200, 500, 1000)))
    assert (found.ratio_ppm, found.offset_us, found.samples) == (2 * PPM, 30, 4)


def test_what_goes_between_nodes_teaches_nothing_of_links_within_one() -> None:
    """Four stages, two on each node; the network in the middle takes three times as long."""
    task = synthetic.task("a", layers=4, batch=4)
    strategy = piped(task, (0, 1, 2, 3, 4), ((0,), (1,), (2,), (3,)), "1f1b")
    plan = on_nodes(pipe_plan(strategy), (0, 0, 1, 1))
    middle = {op.id for op in plan.programs[0].round if op.id.split(".")[1] in ("x2", "dx2")}
    log = log_of(plan, HASH)
    slow = tuple(
        structs.replace(op, end_us=op.start_us + 3 * (op.end_us - op.start_us))
        if op.op in middle
        else op
        for op in log.ops
    )
    found = learned(plan, structs.replace(log, ops=slow)).links
    ratios = {way: (link.ratio_ppm, link.samples) for way, link in found.items()}
    rounds = plan.segments[0].rounds
    assert ratios["net"] == (3 * PPM, rounds * len(middle))
    assert ratios["p2p"] == (PPM, 2 * rounds * len(middle))


@pytest.mark.parametrize("estimated", [False, True])
def test_corrected_profile_is_sound_says_so_and_stays_estimated(estimated: bool) -> None:
    """Bytes and soundness are untouched, and provenance names the log."""
    profile = structs.replace(truth(), estimated=estimated)
    plan = planned(profile)
    log = log_of(plan, HASH, noise=0.9)
    corrected = apply(profile, learned(plan, log))
    assert corrected.estimated is estimated
    assert profiles.check.violations(corrected) == []
    assert HASH[:12] in corrected.provenance["corrected"]


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


def test_batches_are_not_copies_to_learn_from() -> None:
    """The copy of a batch waits for the user's data: a slow loader is not a slow link."""
    plan = planned(truth())
    log = log_of(plan, HASH)
    ops = tuple(
        structs.replace(op, end_us=op.end_us + 100) if ".batch." in op.op else op for op in log.ops
    )
    assert any(".batch." in op.op for op in log.ops)
    assert learned(plan, structs.replace(log, ops=ops)).links == learned(plan, log).links


def test_copy_that_was_held_up_moves_no_line() -> None:
    """One of three copies of each size a hundred times too long: the others are believed."""
    found = copies(*((us, us * by) for us in (100, 1_000) for by in (2, 2, 200)))
    assert (found.ratio_ppm, found.offset_us) == (2 * PPM, 0)


def test_ops_predicted_to_take_no_time_teach_nothing() -> None:
    """Nothing is divided by zero."""
    assert copies((0, 50), (100, 200)).samples == 1
