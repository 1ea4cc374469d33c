"""A mistake in a task ends in one sentence that says what, where and what to do."""

from pathlib import Path

import pytest
import torch
from support.cli import executor_cli, nothing_written, planner_cli, profile, refused, succeeded
from torch import nn
from torch.optim import SGD

from executor.errors import WorkloadError
from executor.optim.recipe import Recipe
from executor.profiling.batch_checks import steps_tried

pytestmark = pytest.mark.usefixtures("quick", "untimed")

WORK = '''
from functools import partial
import torch
from executor.profiling.batch_checks import steps_tried
from executor.workload import Evaluation, Task
from torch import nn
from torch.utils.data import DataLoader
from pathlib import Path
from torch.nn.functional import mse_loss
from torch.optim import *
from torch.optim import lr_scheduler as rates

def model():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, 4, 8, generator=generator).unbind()

def task(**changed):
    given = dict(name="a", model=model, data=data, loss=mse_loss, steps=6)
    return [Task(**given | dict(optimizer=partial(AdamW, fused=True)) | changed)]

def between(layer):
    """The model with one more layer in the middle."""
    return lambda: nn.Sequential(nn.Linear(8, 8), layer(), nn.Linear(8, 8))

# The loss.
def vector_loss(): return task(loss=lambda y, t: (y - t).square().mean(1))
def number_loss(): return task(loss=lambda y, t: (y - t).square().mean().item())
def no_loss(): return task(loss=lambda y, t: None)
def detached_loss(): return task(loss=lambda y, t: mse_loss(y.detach(), t))
def unlabelled(): return task(loss=None, data=lambda step: data(step)[0])

# Data. The first batches are good, and the last one is where the mistake is told in the run.
LATE = next(step for step in range(6) if step not in steps_tried(6))
def lacks(step): return data(step) if step != LATE else [][step]

def ends(step):
    if step == LATE: raise StopIteration
    return data(step)

def grows(step): return data(step) if step != LATE else torch.zeros(2, 6, 8).unbind()
def widens(step): return data(step) if step != LATE else torch.zeros(2, 4, 9).unbind()
def few(): return task(data=lacks)
def ending(): return task(data=ends)
def growing(): return task(data=grows)
def widening(): return task(data=widens)
def nothing_at_all(): return task(data=lambda step: None)
def loader(): return task(data=DataLoader(torch.zeros(8, 8), 4))
def judged_by_loader():
    return task(evaluate=Evaluation(1, data=iter(DataLoader(torch.zeros(8, 8), 4)), batches=2))
def reseeded(step):
    with torch.random.fork_rng():
        torch.manual_seed(step)
        return torch.randn(2, 4, 8).unbind()
def forked(): return task(data=reseeded)
def too_few(): return task(data=[data(step) for step in range(4)].__getitem__)
def runs_out(): return task(data=lambda step: data(step) if step < 4 else None)

class Listed(nn.Module):
    def __init__(self): super().__init__(); self.layers = nn.ModuleList(model())
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x

def moved_away(step):
    if Path("moved").exists(): raise FileNotFoundError("no data here")
    return data(step)
def gone(): return task(model=Listed, data=moved_away)

# What is of the batch as a whole.
class Graph(nn.Module):
    def __init__(self): super().__init__(); self.linear = nn.Linear(8, 8)
    def forward(self, x, edges): return self.linear(x).index_add(0, edges[1], x[edges[0]])

def nodes(step): return (torch.zeros(10, 8), torch.zeros(2, 30).long()), torch.zeros(10, 8)
def graph(): return task(model=Graph, data=nodes)

# Models and devices.
class Rounding(nn.Linear):
    def forward(self, x):
        self.double()
        return super().forward(x.double()).float()

class Rebinding(nn.Linear):
    def forward(self, x):
        self.weight.data = self.weight.data.clone()
        return super().forward(x)

class Counting(nn.Module):
    """Not the same twice, without a random number."""
    calls = 0
    def forward(self, x):
        Counting.calls += 1
        return x * Counting.calls

class Private(nn.Module):
    def __init__(self): super().__init__(); self.own = torch.Generator()
    def forward(self, x): return x * torch.rand(8, generator=self.own)

def elsewhere(): return task(model=lambda: model().to("meta"))
def rounding(): return task(model=between(lambda: Rounding(8, 8)))
def rebinding(): return task(model=between(lambda: Rebinding(8, 8)))
def counting(): return task(model=between(Counting))
def private(): return task(model=between(Private))
def scripted(): return task(model=lambda: torch.jit.script(nn.Linear(8, 8)))
def scripted_inside(): return task(model=between(lambda: torch.jit.script(nn.Linear(8, 8))))

old = torch.nn.utils
def weight_normed(): return task(model=between(lambda: old.weight_norm(nn.Linear(8, 8))))
def spectral_normed(): return task(model=between(lambda: old.spectral_norm(nn.Linear(8, 8))))

# Optimizers.
kept = nn.Linear(8, 8)
def no_return(): return task(optimizer=lambda parameters: None)
def a_class(): return task(optimizer=lambda parameters: AdamW)
def strangers(): return task(optimizer=lambda parameters: SGD(kept.parameters(), lr=0.1))
def in_two_groups(): return task(optimizer=lambda ps: SGD([{"params": ps}, {"params": ps[:1]}]))
def lbfgs(): return task(optimizer=LBFGS)
def sparse(): return task(optimizer=SparseAdam)
class Asking(SGD):
    def step(self, closure): return super().step(closure)
def asking(): return task(optimizer=partial(Asking, lr=0.1))

# Schedulers, groups, clipping.
def plateau(): return task(scheduler=rates.ReduceLROnPlateau)
def no_scheduler(): return task(scheduler=lambda optimizer: None)
def made_scheduler(): return task(scheduler=rates.StepLR(SGD(kept.parameters()), 1))
def other_scheduler(): return task(scheduler=lambda _: rates.StepLR(SGD(kept.parameters()), 1))
def raising_scheduler(): return task(scheduler=rates.StepLR)
def one_tensor():
    lr = torch.tensor(0.1)
    return task(
        optimizer=partial(AdamW, lr=lr), groups=lambda name, p: {"weight_decay": 1.0 / p.ndim},
        scheduler=partial(rates.ExponentialLR, gamma=0.9),
    )
def no_groups(): return task(groups=lambda name, parameter: None)
def listed_groups(): return task(groups=[{"lr": 0.1}])
def own_params(): return task(groups=lambda name, p: {"params": [p]})
def raising_groups(): return task(groups=lambda name, p: {}[name])
def nan_clip(): return task(clip=float("nan"))
def no_clip(): return task(clip=0)
def text_clip(): return task(clip="1.0")
'''

PROFILED = {
    "vector_loss": "task a: loss: must return a scalar tensor, the mean over the batch; got [4]",
    "number_loss": "task a: loss: must return a scalar tensor, the mean over the batch; got float",
    "no_loss": "task a: loss: must return a scalar tensor, the mean over the batch; got NoneType",
    "detached_loss": "task a: loss: has no gradient with respect to the outputs",
    "unlabelled": "task a: loss: of the model must be a scalar tensor",
    "nothing_at_all": "task a: data(0): returned None: there is no batch of step 0",
    "loader": "task a: data is a DataLoader; it must be a function that gives the same batch",
    "judged_by_loader": "evaluate.data is a _SingleProcessDataLoaderIter; it must be a function",
    "forked": "task a: data(0): draws from torch's default generator, which belongs to the model",
    "too_few": "task a: data(5): IndexError: list index out of range: there is no batch of step 5",
    "runs_out": "task a: data(5): returned None: there is no batch of step 5, and the task has 6",
    "graph": "task a: data(0) returned 10 and 2 inputs but 10 targets; each tensor must be batch",
    "scripted": "task a: the model is compiled (RecursiveScriptModule), so it can be neither cut",
    "scripted_inside": "task a: module 1 is compiled (RecursiveScriptModule), so it can be neither",
    "weight_normed": "use torch.nn.utils.parametrizations.weight_norm, which gives the same model",
    "spectral_normed": "use torch.nn.utils.parametrizations.spectral_norm, which gives the same",
    "elsewhere": "parameter 0.weight is on meta when model() is done; build the model on the CPU",
    "rounding": "layer 1 (Rounding): moves or replaces its parameter weight in its forward",
    "rebinding": "layer 1 (Rebinding): moves or replaces its parameter weight in its forward",
    "counting": "layer 1 (Counting): gives another output when it is recomputed",
    "private": "layer 1 (Private): gives another output when it is recomputed",
    "no_return": "task a: optimizer: optimizer(parameters) returned NoneType, not a torch.optim",
    "a_class": "task a: optimizer: optimizer(parameters) returned type, not a torch.optim",
    "strangers": "task a: optimizer: the SGD holds parameters that it was not given",
    "in_two_groups": "task a: optimizer: ValueError: some parameters appear in more than one",
    "lbfgs": "task a: optimizer: LBFGS.step wants a closure",
    "asking": "task a: optimizer: Asking.step wants a closure",
    "sparse": "task a: optimizer: SparseAdam wants sparse gradients",
    "plateau": "task a: optimizer: ReduceLROnPlateau.step wants a metric",
    "no_scheduler": "scheduler(optimizer) returned NoneType, not a torch.optim.lr_scheduler",
    "made_scheduler": "task a: scheduler is a StepLR; it must be a function",
    "other_scheduler": "the StepLR is of another optimizer than the one",
    "raising_scheduler": "scheduler(optimizer) raised TypeError",
    "one_tensor": "groups share one tensor as their lr",
    "no_groups": "task a: groups('0.weight', parameter) returned NoneType, not a mapping",
    "listed_groups": "task a: groups is a list; it must be a function",
    "own_params": "groups('0.weight', parameter) may not say params",
    "raising_groups": "task a: groups('0.weight', parameter) raised KeyError: '0.weight'",
    "nan_clip": "task a: clip is nan; it must be a number above 0",
    "no_clip": "task a: clip is 0; it must be a number above 0",
    "text_clip": "task a: clip is '1.0'; it must be a number above 0",
}

LATE = next(step for step in range(6) if step not in steps_tried(6))
GONE = f"there is no batch of step {LATE}, and the task has 6 steps"
RUN = {
    "few": f"task a: data({LATE}): IndexError: list index out of range: {GONE}",
    "ending": f"task a: data({LATE}): StopIteration: {GONE}",
    "growing": f"task a: data({LATE}): returned 6 inputs, the plan has a batch of 4",
    "widening": f"task a: data({LATE}): inputs was [4, 8] and is now [4, 9]",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with work.py is the current directory."""
    (tmp_path / "work.py").write_text(WORK)
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", PROFILED)
def test_a_mistake_is_told_when_a_task_is_profiled(name: str) -> None:
    """In one line, with exit code 2, and nothing is written."""
    arguments = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1)
    with nothing_written():
        answer = executor_cli("profile", f"work.py:{name}", *arguments, "-o", "profile.json")
    refused(answer, 2, PROFILED[name])


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_twice_is_refused() -> None:
    """Torch warns only, and would update it twice."""
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    recipe = Recipe(lambda given: SGD([*given, given[0]], lr=0.1))
    with pytest.raises(WorkloadError, match="holds a parameter twice"):
        recipe.make(parameters, parameters)


@pytest.mark.parametrize("name", RUN)
def test_a_mistake_that_comes_late_is_told_with_its_step(name: str) -> None:
    """In one line, with exit code 1."""
    profile(f"work.py:{name}", "profile.json")
    succeeded(planner_cli("build", "profile.json", "-o", "plan.json", "--microbatch", 4))
    refused(executor_cli("run", "plan.json", "-o", "x"), 1, RUN[name])


def test_data_that_is_gone_when_a_run_opens_is_told() -> None:
    """Not that the model, whose layers were found with it, has become another one."""
    profile("work.py:gone", "profile.json")
    succeeded(planner_cli("build", "profile.json", "-o", "plan.json"))
    Path("moved").touch()
    text = "task a: data(0): FileNotFoundError: no data here"
    refused(executor_cli("run", "plan.json", "-o", "x"), 1, text)
