"""What cannot be asked of a plan: one line, exit code 2, both numbers, and nothing is written."""

from pathlib import Path

import pytest
from support import synthetic
from support.cli import nothing_written, planner_cli, refused

import profiles

pytestmark = pytest.mark.usefixtures("quick", "profiled")

BUILD, NODES = "build x.json -o plan.json", "--nodes 2x2 --net 1GB/s"
KINDS = "build x.json y.json -o plan.json"
SWEEP = "sweep x.json --device-memory 8MiB"

# What is said of a call.
SAID = {
    "a: microbatch 3 was not measured, only 1, 2, 4": f"{BUILD} --microbatch 3",
    "b: microbatch 8 was not measured, only 1, 2, 4": f"{BUILD} --microbatch b=8",
    "--microbatch: there is no task 'c', only a, b": f"{BUILD} --microbatch c=1",
    "give it once": f"{BUILD} --microbatch 1 --microbatch 2",
    "--microbatch: task 'a' has more than one": f"{BUILD} --microbatch a=1 --microbatch a=1",
    "argument --microbatch: 'few' is not a whole number": f"{BUILD} --microbatch few",
    "'2y2' is no layout; write depth x replicas like 2x2": f"{BUILD} --layout 2y2",
    "has 8192 devices, 4096 are the most": f"{BUILD} --layout 4096x2",
    "invalid choice: 'best'": f"{BUILD} --order best",
    "--devices says 1 number but there are 2 profiles": KINDS,
    "--devices says 2 numbers but there is 1 profile": f"{BUILD} --devices 1,2",
    "--device-memory lists 3 sizes for 2 profiles": (
        f"{KINDS} --devices 1,1 --device-memory 1GiB,1GiB,1GiB"
    ),
    "--corrections are of one kind of devices": f"{KINDS} --devices 1,1 --corrections c.json",
    "give its rate, like --net 12GB/s": f"{BUILD} --nodes 2x2",
    "has 4 devices, --devices says 3": f"{BUILD} {NODES} --devices 3",
    "there are 2 profiles": f"{KINDS} {NODES}",
    "cannot wait on a disk": f"{BUILD} {NODES} --disk-space 1GB",
    "about several nodes": f"{BUILD} --net 1GB/s",
    "or whole nodes": f"{BUILD} {NODES} --layout 3x1",
    "--disk DIR": f"{BUILD} --disk-space 1GiB",
    "--deadline: there is no task 'x', only a, b": f"{BUILD} --deadline x=1h",
    "'a' is not like TASK=DURATION": f"{BUILD} --start a",
    "'soon' is not a time": f"{BUILD} --start a=soon",
    "'0' is not a whole number from 1": f"{BUILD} --priority a=0",
    "add --objective completion": f"{BUILD} --priority a=2",
    "task 'a' has more than one": f"{BUILD} --start a=1s --start a=2s",
    "--policy hydra knows neither": f"{BUILD} --policy hydra --start a=1s",
    "invalid choice: 'fame'": f"{BUILD} --objective fame",
    "argument --policy: invalid choice: 'luck'": f"{BUILD} --policy luck",
    "argument --jobs: '0' is not a whole number from 1": f"{BUILD} --jobs 0",
    "--h2d lists 2 rates and --d2h 3": (f"{SWEEP} --h2d 1GB/s,2GB/s --d2h 1GB/s,2GB/s,3GB/s"),
    "x.jpeg: the name of a picture ends in .png": f"{SWEEP} --plot x.jpeg",
    "x.json: cannot be written: this command reads it": f"{SWEEP} --plot x.json",
    "argument --device-memory": "sweep x.json --device-memory 1,,x",
    "argument --h2d": f"{SWEEP} --h2d 1,,x",
    "k80 has no bf16; it has fp32: give one of them as --dtype, or none": (
        "estimate gpt2 --gpu k80 --batch 4 --dtype bf16 -o e.json"
    ),
    "argument --microbatch": f"{SWEEP} --microbatch 1,,x",
}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with x.json and y.json: tasks a and b on a device and on a slower one."""
    folder = tmp_path_factory.mktemp("profiled")
    for name, us in (("x", 1_000), ("y", 2_000)):
        tasks = [synthetic.task(task, layers=3, seed=1, batch=4, forward_us=us) for task in "ab"]
        made = synthetic.profile(*tasks, usable_bytes=64 << 20)
        profiles.save(folder / f"{name}.json", made)
    return folder


@pytest.mark.parametrize("said", SAID)
def test_a_call_is_refused(said: str, profiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("planner.sweep.build", "planner.builder.assemble"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("a plan was made"))
    monkeypatch.chdir(profiled)
    with nothing_written():
        answer = planner_cli(*SAID[said].split())
    refused(answer, 2, said)
