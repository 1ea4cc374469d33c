"""Optuna chooses settings, eight for each sweep: python docs/optuna_sweep.py"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from executor import Evaluation, Sweep, Task


def batch(step):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
    return x, (x.sum(1) > 0).long()


def trial(name, lr, width):
    return Task(
        name=name,
        model=lambda: nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)),
        data=batch,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        steps=90,
        evaluate=Evaluation(every=10, data=lambda n: batch(10_000 + n), batches=4),
    )


def sweep():
    configs = json.loads(Path("configs.json").read_text())
    return Sweep(configs, task=trial, rungs=(10, 30, 90), metric="val_loss")


def main(turns=3, count=8):
    import optuna

    study = optuna.create_study()
    for turn in range(turns):
        trials, configs = {}, {}
        for name in (f"turn{turn}-t{n}" for n in range(count)):
            one = trials[name] = study.ask()
            lr = one.suggest_float("lr", 1e-4, 1e-1, log=True)
            configs[name] = {"lr": lr, "width": one.suggest_int("width", 8, 32)}
        Path("configs.json").write_text(json.dumps(configs))
        command = [sys.executable, "-m", "executor", "tune", f"{__file__}:sweep", "--json"]
        command += ["--device-memory", "1MiB", "--devices", "4", "-o", f"runs/turn-{turn}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for row in json.loads(done.stdout)["tasks"]:
            one, values = trials[row["task"]], row["metric"]
            known = {int(step): value for step, value in values.items() if value is not None}
            for step, value in known.items():
                one.report(value, step)
            if 90 in known:
                study.tell(one, known[90])
            else:  # Optuna takes what was reported last
                state = optuna.trial.TrialState.PRUNED if known else optuna.trial.TrialState.FAIL
                study.tell(one, state=state)
    print(study.best_trial.params)


if __name__ == "__main__":
    main()
