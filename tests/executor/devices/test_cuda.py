"""CUDA devices, on a runtime of threads: launches run ahead, and nothing is read too early."""

import itertools
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs
from support import fake_cuda, handmade
from support.chains import tasks_for
from support.fake_cuda import on_cuda
from support.fit import fit
from support.handmade import CASTING
from support.same import assert_same
from support.searches import SHORT
from support.waits import counted
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from executor import cutting, driver, run
from executor.devices import Now, QueueKind, cuda, gpu, hostmem, limits, open_devices
from executor.devices.device import aligned, apart, until
from executor.driver import Options
from executor.errors import RunError, UsageError
from executor.profiling import layer, profiler
from executor.profiling import links as link_profiler
from executor.replay.settings import Limits
from executor.shards import host_room
from executor.workload.batches import ROOM, Batches, staging_bytes
from executor.workload.task import Task
from planner import Infeasible, Problem, build
from plans.part import Part
from plans.schema import Device as Spec
from plans.schema import Plan
from profiles import violations
from profiles.schema import Numerics

pytestmark = pytest.mark.usefixtures("quick", "warm")


def opened(index: int = 0) -> cuda.CudaDevice:
    """A device of 1 MiB with a slab of 1 KiB."""
    return cuda.CudaDevice(Spec(f"cuda{index}", "cuda", 1 << 20, 1), 1 << 10, index)


def test_a_copy_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to be launched, and the device hangs in the very last op."""
    seen = fake_cuda.install(monkeypatch)
    tasks = tasks_for(handmade.resident())
    plan = on_cuda(fit(handmade.resident(), tasks))
    last = plan.programs[0].leave[-1].id
    copy_out, awake, copies = cuda.CudaDevice.copy_out, threading.Event(), itertools.count(1)

    def hanging(*copied: Any) -> None:
        if next(copies) == len(plan.programs[0].leave):
            seen.memory.current(0).put(lambda: awake.wait(20))
        copy_out(*copied)

    monkeypatch.setattr(cuda.CudaDevice, "copy_out", hanging)
    with pytest.raises(RunError) as stalled:
        run(plan, tasks, Options(stall_seconds=0.5))
    awake.set()
    assert f"{last} runs on 0.d2h in round 0" in str(stalled.value)
    assert "0.compute" not in str(stalled.value)  # it has done its part


def locked_bytes(seen: SimpleNamespace, plan: Plan, tasks: list[Task]) -> set[int]:
    """The bytes that are page-locked whenever the first task's data is asked for; none remain."""
    found: set[int] = set()
    first = tasks[0].data

    def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        found.add(sum(seen.locked.values()))
        assert all(address % hostmem.PAGE == 0 for address in seen.locked)
        return first(step)

    run(plan, [replace(tasks[0], data=data), *tasks[1:]])
    assert seen.locked == {}
    return found


@pytest.mark.parametrize("ring_bytes", [0, hostmem.RING_BYTES])
def test_host_memory_is_locked_at_its_exact_size(
    ring_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store, batches and the ring of casts are page-locked before the first step, given back after
    the last, and count in what the machine must have free."""
    seen = fake_cuda.install(monkeypatch)
    made = CASTING["cast-streamed"]() if ring_bytes else handmade.streamed()
    fused = partial(AdamW, lr=1e-2, fused=True)
    own = {"precision": "bf16", "optimizer": fused} if ring_bytes else {}
    tasks = [replace(task, **own) for task in tasks_for(made)]
    plan = on_cuda(fit(made, tasks))
    beside = [*map(staging_bytes, plan.tasks), *[ring_bytes] * bool(ring_bytes)]
    sizes = [plan.host.bytes, 8 * cuda._SCALARS, *beside]
    assert locked_bytes(seen, plan, tasks) == {sum(map(hostmem.pages, sizes))}
    if ring_bytes:
        needed = plan.host.bytes + sum(beside)
        needed += 3 * sum(s.param_bytes for s in plan.tasks[0].shards)  # fp32, and bf16 to cut
        monkeypatch.setattr(host_room, "free_host_bytes", lambda: needed - 1)
        with pytest.raises(RunError, match=f"need {needed} bytes, the machine has {needed - 1} f"):
            run(plan, tasks)


def test_of_a_store_the_pages_in_use_are_locked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that share a page, or lie in neighbouring ones, are locked together."""
    seen, page = fake_cuda.install(monkeypatch), hostmem.PAGE
    flat = aligned(10 * page)
    begin = -flat.data_ptr() % page
    memory = hostmem.PageLocked()
    spans = [(10, 20), (page - 5, page + 5), (2 * page, 2 * page + 1), (7 * page + 1, 8 * page)]
    memory.lock(flat[begin:], spans)
    first = flat.data_ptr() + begin
    assert seen.locked == {first: 3 * page, first + 7 * page: page}
    memory.close()
    assert seen.locked == {}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says")
def test_a_child_process_does_not_get_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would copy it, or leave the device with the pages of the child."""
    fake_cuda.install(monkeypatch)
    flat = hostmem.PageLocked().take(5 * hostmem.PAGE)
    areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    (own,) = (area for area in areas if area.startswith(f"{flat.data_ptr():x}-"))
    flags = re.search(r"VmFlags: (.*)", own)
    assert "dc" in flags[1].split()


def test_memory_is_unlocked_when_copies_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure copies may still be on their way."""
    fake_cuda.install(monkeypatch)
    device, order = opened(), list[str]()
    queue = device.queue("d2h")
    assert isinstance(queue, cuda.CudaQueue)
    queue.stream.put(lambda: (time.sleep(0.1), order.append("copied"))[0])  # type: ignore[attr-defined]
    unlock = device._locked.close
    monkeypatch.setattr(device._locked, "close", lambda: (order.append("unlocked"), unlock()))
    device.close()
    assert order == ["copied", "unlocked"]


def test_times_of_marks_are_the_same_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread moves the clock's base on while others read it."""
    fake_cuda.install(monkeypatch)
    cuda.torch.cuda.set_device(0)
    clock = cuda.Clock(0)
    base, begun = clock._base
    marks = [cuda.CudaMark(0, torch.cuda.current_stream(0), clock) for _ in range(400)]
    marks[-1].event.synchronize()
    for number, mark in enumerate(marks):
        mark.event._at = base.event._at + 0.9 * number
    patience = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(clock.seconds, marks * 4))
    finally:
        sys.setswitchinterval(patience)
    wrong = [abs(at - begun - 0.9 * (n % 400)) for n, at in enumerate(found)]
    assert max(wrong) < 1e-6


@pytest.mark.parametrize(("kind", "ahead"), [("compute", cuda.AHEAD), ("d2h", cuda.COPIES)])
def test_a_queue_is_not_far_ahead_of_its_device(
    kind: QueueKind, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that fills the driver's queue holds up all others that launch."""
    fake_cuda.install(monkeypatch)
    queue, marks, ended = opened().queue(kind), list[Pending](), list[int]()
    monkeypatch.setattr(queue, "mark", lambda: marks.append(Pending()) or marks[-1])

    def launch() -> None:
        for number in range(ahead + 2):
            queue.end(Pending(), 0, lambda: None)
            ended.append(number)

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    for reached in range(2):
        time.sleep(0.1)
        assert len(ended) == ahead + reached
        marks[reached].reached.set()
    thread.join(5)
    assert len(ended) == ahead + 2


def test_threads_that_launch_get_their_turn_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a thread of pure Python each op of a layer would wait 5 ms for it, in a run only."""
    fake_cuda.install(monkeypatch)
    (task,), before, seen = tasks_for(handmade.resident()), sys.getswitchinterval(), set[float]()

    def data(step: int) -> Any:
        seen.add(sys.getswitchinterval())
        return task.data(step)

    run(on_cuda(fit(handmade.resident(), [task])), [replace(task, data=data)])
    assert max(seen) < before / 10
    assert sys.getswitchinterval() == before


def test_memory_that_cannot_be_locked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the bytes and the remedy."""
    fake_cuda.install(monkeypatch)
    refusing = SimpleNamespace(cudaHostRegister=lambda *_: 2)
    monkeypatch.setattr(hostmem, "_runtime", lambda: refusing)
    with pytest.raises(RunError, match=r"4096 bytes of host memory .* \(CUDA error 2\); raise"):
        hostmem.PageLocked().take(4096)


class Pending:
    """A mark that is reached when the test says so."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def ready(self) -> bool:
        return self.reached.is_set()

    def seconds(self) -> float:
        return 0.0


def test_batches_wait_for_the_copies_of_those_before() -> None:
    """The memory of a microbatch is not written again before its copy to the device is done."""
    (task,) = tasks_for(handmade.resident())
    plan = structs.replace(fit(handmade.resident(), [task]).tasks[0], steps=20)
    staging = aligned(staging_bytes(plan))
    batches = Batches(plan, task, 1, staging, lambda step: None)
    batches.start()
    marks, taken = [], []
    for step in range(ROOM):
        for m in range(plan.microbatches):
            flat, mark = batches.take(step, m).flat, Pending()
            taken.append((flat, flat.clone()))
            batches.sent(step, mark)
            marks.append(mark)
    time.sleep(0.2)
    assert all(torch.equal(flat, before) for flat, before in taken)
    for mark in marks[: plan.microbatches]:
        mark.reached.set()
    deadline = time.monotonic() + 5
    while torch.equal(*taken[0]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not torch.equal(*taken[0])
    batches.stop()


def test_a_machine_without_cuda_is_a_usage_error() -> None:
    """A plan for CUDA says so where there is none."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    tasks = tasks_for(handmade.streamed())
    with pytest.raises(
        UsageError, match=r"is CUDA device 0, but torch .* sees 0 here; see nvidia-smi"
    ):
        run(on_cuda(fit(handmade.streamed(), tasks)), tasks)


def test_the_driver_is_told_before_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many queues as there can be, and small buffers of NCCL, unless somebody knows better."""
    fake_cuda.install(monkeypatch)
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    monkeypatch.setenv("NCCL_BUFFSIZE", "7")
    told, init = dict[str, str](), torch.cuda.init
    monkeypatch.setattr(torch.cuda, "init", lambda: (told.update(os.environ), init()))
    open_devices([Spec("cuda0", "cuda", 1 << 20, 1)], [1 << 10])
    assert told["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert told["NCCL_BUFFSIZE"] == "7"


def test_the_process_is_capped_at_budget_and_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 1 TiB is used like one of the plan's size, whatever a run before has left."""
    seen = fake_cuda.install(monkeypatch)
    seen.kept = 1 << 30
    tasks = tasks_for(handmade.streamed())
    plan = on_cuda(fit(handmade.streamed(), tasks))
    run(plan, tasks)
    budget = plan.devices[0].budget_bytes
    assert seen.fraction == (budget + gpu.margin(budget)) / (1 << 40)


def test_a_card_that_others_fill_is_said_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the ops take beside the slab is asked for in the first round only."""
    seen = fake_cuda.install(monkeypatch)
    device = opened()
    seen.free = (1 << 20) - (1 << 10) + 7  # its budget without its slab, and what is beside it
    device.limit(7)
    with pytest.raises(RunError, match=f"{seen.free} bytes free .* may take {seen.free + 1}; "):
        device.limit(8)


def test_memory_of_connections_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made last, and what they take is missing in the first round only."""
    seen = fake_cuda.install(monkeypatch)
    tasks = tasks_for(handmade.streamed())
    plan = on_cuda(fit(handmade.streamed(), tasks))

    def joined() -> None:
        seen.free -= (1 << 40) - 7

    others: Any = SimpleNamespace(part=Part.whole(plan), store=None, joined=joined)
    with pytest.raises(RunError, match=f"7 bytes free .* taken {(1 << 40) - 7} since"):
        driver.run(plan, tasks, Options(), cutting.planned, others)


def test_a_device_takes_its_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has few of them, and libraries keep memory for each."""
    seen = fake_cuda.install(monkeypatch, devices=2)
    for _ in range(2):
        for device in (opened(0), opened(1)):
            device.queue("h2d")
        assert seen.streams == 4


def test_events_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of marks that nobody asks any more, but not that from which the clock counts."""
    fake_cuda.install(monkeypatch)
    queue, made = opened().queue("h2d"), fake_cuda.Event.made
    for _ in range(100):
        first, second = queue.mark(), queue.mark()
    assert fake_cuda.Event.made <= made + 4
    fake_cuda.torch.cuda.set_device(0)
    until(second)
    assert first.seconds() < second.seconds()
    first.event._at += 10  # type: ignore[attr-defined]
    at = first.seconds()
    later = [queue.mark() for _ in range(3)]
    del first
    later.append(queue.mark())
    until(later[-1])
    assert second.seconds() < later[-1].seconds() < at


def test_sends_to_one_device_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two devices that send to a third, one waits for its op before."""
    fake_cuda.install(monkeypatch, devices=3)
    (*senders, receiver), blocked = [opened(n) for n in range(3)], threading.Event()
    queues = [sender.queue("p2p") for sender in senders]
    queues[0].stream.put(lambda: blocked.wait(20))  # type: ignore[attr-defined]

    def send(number: int) -> cuda.CudaMark:
        senders[number].send(receiver.slab[:512], senders[number].slab[:512])
        return queues[number].mark()  # type: ignore[return-value]

    marks = [apart(queue, partial(send, number)) for number, queue in enumerate(queues)]
    deadline = time.monotonic() + 5
    while not marks[1].ready() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [mark.ready() for mark in marks] == [False, True]
    blocked.set()


def test_states_of_a_cuda_generator_can_be_counted() -> None:
    """The offset moves on with the draws, the seed stays."""
    source = cuda.CudaSource(0)
    state = torch.tensor([42, 8], dtype=torch.int64).view(torch.uint8)
    later = source.advanced(state, 12)
    assert later.view(torch.int64).tolist() == [42, 20]
    assert state.view(torch.int64).tolist() == [42, 8]
    assert source.count(state, later) == 12
    assert source.count(later, state) is None
    assert source.count(state, torch.tensor([1, 20]).view(torch.uint8)) is None


def test_updates_keep_away_from_the_launching_cores() -> None:
    """Sixteen cores leave twelve for updates; few cores are not parted."""
    assert gpu.update_threads(16, 1) == 12
    assert gpu.update_threads(16, 2) == 6
    assert gpu.update_threads(4, 1) == 4


def test_the_runtime_that_is_called_exists() -> None:
    """Every function of torch.cuda that the code names is one that torch has."""
    source = "".join(Path(module.__file__).read_text() for module in (cuda, gpu, hostmem))
    names = set(re.findall(r"torch\.cuda\.(\w+)", source))
    assert names >= {"Event", "Stream", "set_stream", "memory_allocated"}
    assert [name for name in names if not hasattr(torch.cuda, name)] == []


WAITS = {
    ("numerics/buffers.py", ".cpu("): "what buffers a model has, seen once for each kind of device",
    ("numerics/buffers.py", ".numpy("): "the same",
    ("numerics/precision.py", ".cpu("): "the loss scale between two segments",
    ("numerics/precision.py", "torch.tensor("): "numbers of parameters, sent once",
    ("shards/checks.py", ".numpy("): "the hash of a base, before the first segment",
    ("numerics/rng.py", ".item("): "a generator's state, which is in host memory",
}


def test_an_op_reads_nothing_back_from_its_device() -> None:
    """Calls that wait for a GPU stand in no code of the loop but where it says why."""
    waiting = re.compile(r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\(|torch\.tensor\(")
    root = Path(cuda.__file__).parents[1]
    found = {
        (str(path.relative_to(root)), call)
        for room in ("replay", "shards", "numerics", "optim")
        for path in (root / room).glob("*.py")
        for call in waiting.findall(path.read_text())
    }
    assert found == WAITS.keys()


def test_the_host_waits_for_its_device_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in four rounds of four streams: for the fourth op of the compute stream before, for
    what updates on the host read, for the other streams where two phases begin, for the round
    before the last, and for the end."""
    fake_cuda.install(monkeypatch)
    tasks = tasks_for(handmade.streamed())
    plan = on_cuda(fit(handmade.streamed(), tasks))
    waits, ops = counted(monkeypatch), plan.programs[0].round
    run(plan, tasks)
    streams = {op.stream for op in ops}
    reads = [edge for op in ops if op.stream == "host.0" for edge in op.after]
    assert waits == {
        "CudaQueue.end": 4 * sum(op.stream == "0.compute" for op in ops) - cuda.AHEAD,
        "HostQueue.wait": sum(4 - edge.endswith("@-1") for edge in reads) + 2 * (len(streams) - 1),
        "Stream.throttle": len(streams) * (4 - Limits().ahead),
        "SegmentRun._play": len(streams),
        "SegmentRun._drain": len(streams),
    }


def test_copies_are_timed_by_the_device_with_others_in_flight() -> None:
    """Their launches take time of the host, and a copy that waits for one is no link's."""
    reached, launched = iter([1.0, 1.8]), list[int]()
    queue = SimpleNamespace(mark=lambda: Now(next(reached)))
    device = SimpleNamespace(queue=lambda _: queue, spec=Spec("cuda0", "cuda", 1, 1))
    line = link_profiler._Line(device, "h2d", launched.append)  # type: ignore[arg-type]
    assert line.copies(64) == pytest.approx(0.1)
    assert launched == 8 * [64]


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 32, generator=generator), torch.randn(2, 32, generator=generator)


def workload() -> list[Task]:
    """Tasks of every precision, by the name of this file."""

    def model() -> nn.Module:
        layers = (nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.GELU()) for _ in range(3))
        return nn.Sequential(*layers)

    fused = partial(AdamW, lr=1e-2, fused=True)
    return [
        Task(f"toy-{precision}", model, rows, F.mse_loss, fused, 3, 3, precision, clip)
        for precision, clip in (("fp32", None), ("bf16", 0.1), ("fp16-autocast", None))
    ]


def test_profile_build_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile has links, also between two devices, memory without what libraries keep and take
    meanwhile, and switches; every precision trains the plain loop's bits in the least memory."""
    seen, measure = fake_cuda.install(monkeypatch, devices=2), profiler.task_profiler.measure
    monkeypatch.setattr(link_profiler, "_SIDE", 64)
    monkeypatch.setattr(link_profiler, "_WARM_S", 0.01)
    monkeypatch.setattr(layer.gc, "collect", lambda: 0)

    def loading(*own: Any) -> Any:
        seen.free -= 10 << 20
        return measure(*own)

    monkeypatch.setattr(profiler.task_profiler, "measure", loading)
    asked = profiler.Options(1 << 30, None, devices=3, samples=1, numerics=Numerics(tf32=True))
    measured = profiler.profile(f"{__file__}:workload", asked)
    assert violations(measured) == []
    device = measured.machine.devices[0]
    assert (device.kind, device.emulation) == ("cuda", None)
    assert device.usable_bytes == (994 << 20) - gpu.margin(994 << 20)  # three tasks later
    links = {link.kind: link for link in device.links}
    assert links.keys() == {"h2d", "d2h", "d2d", "p2p", "cast"}  # one of the tasks is bf16
    cast = links["cast"].alone  # of which the first piece is over before any copy
    assert cast.latency_us >= hostmem.PIECE * 10**6 // cast.bytes_per_s
    assert measured.machine.numerics == Numerics(tf32=True)
    assert [task.precision for task in measured.tasks] == ["fp32", "bf16", "fp16-autocast"]
    assert torch.backends.cuda.matmul.allow_tf32
    problem = Problem.of(measured, devices=1, device_bytes=1, host_bytes=1 << 30)
    with pytest.raises(Infeasible) as refused:
        build(problem, profile_sha256="0" * 64, limits=SHORT)
    problem = Problem.of(
        measured, devices=1, device_bytes=refused.value.smallest, host_bytes=1 << 30
    )
    plan = build(problem, profile_sha256="0" * 64, limits=SHORT)
    tasks = [task for task in workload() if task.name in {t.name for t in plan.tasks}]
    assert_same(plan, tasks, run(plan, tasks))


def written(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    monkeypatch.setattr(limits, "_available", lambda: 1000)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    return tmp_path


TWO = {
    "memory.max": "900\n",
    "memory.current": "500\n",
    "memory.stat": "anon 3\ninactive_file 70\n",
}
ONE = {
    "memory/memory.limit_in_bytes": "900\n",
    "memory/memory.usage_in_bytes": "500\n",
    "memory/memory.stat": "inactive_file 70\n",
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 1000),
        (TWO, 470),
        (ONE, 470),
        (TWO | {"memory.max": "max\n"}, 1000),
        (ONE | {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1000),
        (TWO | {"memory.current": "990\n"}, 0),
    ],
)
def test_free_memory_is_what_the_container_may_take(
    files: dict[str, str], free: int, group: Path
) -> None:
    """The machine has 1,000 bytes; files in memory are given back where others need it."""
    written(group, files)
    assert limits.free_host_bytes() == free


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu.max": "9900000 100000\n"}, 8),
    ],
)
def test_cores_are_those_that_the_quota_has_time_for(
    files: dict[str, str], cores: int, group: Path
) -> None:
    """Of eight cores that the process may run on."""
    written(group, files)
    assert limits.cores() == list(range(cores))
