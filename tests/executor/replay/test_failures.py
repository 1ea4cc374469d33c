"""A run that cannot go on ends soon, and says in one line which op it was and why."""

import _thread
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs
from support import handmade
from support.chains import WIDTH, Irregular, tasks_for
from support.fit import fit
from torch import Tensor, nn

from executor import run
from executor.driver import Options
from executor.errors import MismatchError, RunError
from executor.replay import Limits
from executor.workload.task import Task
from plans import runlog
from plans.schema import Plan

pytestmark = pytest.mark.timeout(60)  # no failure waits for layers that sleep on
SOON = Limits(goodbye_s=0.1)  # to them


def setup(
    make: Callable[[], nn.Module] | None = None, name: str = "streamed"
) -> tuple[Plan, list[Task]]:
    """A plan fitted to ordinary layers, and tasks whose layers are `make()` ones."""
    plan = handmade.PLANS[name]()
    ordinary = tasks_for(plan, make=lambda: nn.Linear(WIDTH, WIDTH))
    return fit(plan, ordinary), tasks_for(plan, make=make) if make else ordinary


class Broken(nn.Linear):
    """Fails in its `after`-th forward, a number shared by all layers."""

    calls = 0
    after = 30

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        Broken.calls += 1
        if Broken.calls > Broken.after:
            raise RuntimeError("the coffee\nis cold")
        return super().forward(x)


def test_an_exception_names_the_op(tmp_path: Path) -> None:
    """A layer that raises ends the run with op, stream, round and its text on one line."""
    Broken.calls = 0
    plan, tasks = setup(Broken)
    with pytest.raises(RunError, match=r"^a\.s\d\.[FB]\d on 0\.compute in round 1: ") as caught:
        run(plan, tasks, Options(folder=tmp_path))
    assert str(caught.value).endswith("RuntimeError: the coffee is cold")
    end = runlog.load(tmp_path).end
    assert (end.status, end.error) == ("failed", str(caught.value))


class Night:
    """One test's events: a layer has fallen asleep, layers may wake up."""

    def __init__(self) -> None:
        self.asleep = threading.Event()
        self.awake = threading.Event()

    def __deepcopy__(self, memo: object) -> "Night":
        return self


class Asleep(nn.Linear):
    """Sleeps in its forward until its night is over."""

    night = Night()

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.mine = Asleep.night

    def forward(self, x: Tensor) -> Tensor:
        self.mine.asleep.set()
        self.mine.awake.wait(600)
        return super().forward(x)


@pytest.fixture
def night() -> Iterator[Night]:
    Asleep.night = Night()
    yield Asleep.night
    Asleep.night.awake.set()


@pytest.mark.usefixtures("night")
def test_a_stall_is_found() -> None:
    """When no op ends for too long the run fails, naming who runs and who waits for whom."""
    plan, tasks = setup(Asleep)
    with pytest.raises(RunError, match=r"no op ended for .*: a\.s0\.F0 runs on 0\.compute") as e:
        run(plan, tasks, Options(stall_seconds=0.5, limits=SOON))
    assert "a.s2.S0 waits for a.s2.B1 on 0.d2h in round 0" in str(e.value)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_names_the_op(night: Night) -> None:
    """Ctrl-C ends the run with what was running, although that does not return."""
    plan, tasks = setup(Asleep)

    def press() -> None:
        if night.asleep.wait(60):
            _thread.interrupt_main()

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(RunError, match=r"^interrupted in a\.s0\.F0 runs on 0\.compute"):
        run(plan, tasks, Options(limits=SOON))


def test_an_interrupt_while_a_segment_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the starts of a segment's threads ends the run as it does later."""
    plan, tasks = setup()
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if thread.name.startswith("0."):
            begun.append(thread)
            if len(begun) == 2:
                raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(RunError, match=r"^interrupted in "):
        run(plan, tasks)


def with_memory(plan: Plan, **sizes: int) -> Plan:
    """The plan with other sizes of its first program's first device."""
    program = plan.programs[0]
    memory = (structs.replace(program.memory[0], **sizes), *program.memory[1:])
    made = structs.replace(program, memory=memory)
    return structs.replace(plan, programs=(made, *plan.programs[1:]))


def test_transients_over_the_reserve() -> None:
    """An op that takes more than its device reserves is told with both numbers."""
    plan, tasks = setup()
    plan = with_memory(plan, reserve_bytes=100)
    with pytest.raises(RunError, match=r"a\.s0\.F0 .* took \d+ bytes .* reserves 100 on device 0"):
        run(plan, tasks)


def test_a_varying_number_of_draws() -> None:
    """With several microbatches a forward must draw as often as the plan says."""
    plan, tasks = setup(Irregular)
    with pytest.raises(RunError, match=r"a\.s\d\.[FB]\d .*varying number of random numbers"):
        run(plan, tasks)


class Late(nn.Linear):
    """Draws nothing in the first `quiet` forwards, and then from the default generator."""

    calls = 0

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        Late.calls += 1
        return super().forward(x) + (torch.rand(1) if Late.calls > 50 else 0)


def test_draws_that_begin_later() -> None:
    """A shard planned without draws is watched in every round, not only in the first."""
    Late.calls = 0
    plan, tasks = setup(Late)
    with pytest.raises(RunError, match=r"in round [1-9]: .*although the plan knows of none"):
        run(plan, tasks)


class Own(nn.Linear):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.generator = torch.Generator()

    def __deepcopy__(self, memo: object) -> "Own":
        return self

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(1, generator=self.generator)


class InPlace(nn.Linear):
    """Changes its input."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Own, "a.s0.F0 .*draws from a generator of its own"),
        (InPlace, "a.s0.F0 .*changes its input in place"),
    ],
)
def test_layers_that_cannot_be_replayed(make: Callable[[], nn.Module], text: str) -> None:
    """What would silently give other numbers than the plain loop is an error."""
    plan, tasks = setup(make)
    with pytest.raises(RunError, match=text):
        run(plan, tasks)


def test_another_model_than_planned() -> None:
    """A model of other sizes or lengths is refused before anything runs."""
    plan, tasks = setup(lambda: nn.Linear(WIDTH, WIDTH, bias=False))
    with pytest.raises(MismatchError, match=r"a\.s0: bytes of parameters: 2560 in the plan, 2048"):
        run(plan, tasks)
    with pytest.raises(MismatchError, match="task a: layers: 6 in the plan, 1 in the work"):
        run(plan, [replace(tasks[0], model=lambda: nn.Linear(1, 1))])
    with pytest.raises(MismatchError, match="the plan trains task a, the workload has b"):
        run(plan, [replace(tasks[0], name="b")])
