"""The commands of `python -m planner` and their options.

Results go to stdout, progress to stderr.

Exit codes: 0 ok; 1 the check failed; 2 usage or bad file; 3 infeasible; 4 no plan in time.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import get_args

from planner.cli.plan_commands import build_book, build_plan, estimate_profile, sweep_budgets
from planner.cli.show_commands import (
    EXPORTS,
    check_plan,
    compare_run,
    export_plan,
    report_page,
    show_plan,
    survive_trace,
)
from planner.estimate import GPUS, MODELS, MOMENTS, NUMBER
from planner.inputs import BOOKED, Policy, add_options, parse_nodes
from profiles import console

Option = Callable[..., object]

_EPILOG = """examples:
  python -m planner build profiles/demo.json --devices 2 -o plans/demo.json
  python -m planner estimate gpt2-xl --gpu a100-40 --batch 16 -o profiles/gpt2-xl.json
  python -m planner show plans/demo.json --gantt plans/demo.png
  python -m planner compare plans/demo.json runs/demo.jsonl --gantt compare.png

exit codes: 0 ok; 1 failed check; 2 usage or bad file; 3 infeasible; 4 no plan in time"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is returned, errors are one line on stderr."""
    return console.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = console.Parser(
        prog="python -m planner",
        description="Plan, check, show and compare timetables.",
        epilog=_EPILOG,
        formatter_class=raw,
    )
    names = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, options, text in (
        ("build", build_plan, _build, "make a plan from a profile, or one of each device"),
        ("book", build_book, _book, "make plans of one training for several numbers of devices"),
        ("estimate", estimate_profile, _estimate, "make a profile from formulas, without a GPU"),
        (
            "survive",
            survive_trace,
            _survive,
            "what a book would train on machines that come and go",
        ),
        ("sweep", sweep_budgets, _sweep, "how fast with how much memory, over which link"),
        ("check", check_plan, _check, "prove that a plan neither races nor overflows"),
        ("show", show_plan, _show, "describe a plan, draw it"),
        ("compare", compare_run, _compare, "predicted against actual"),
        ("report", report_page, _report, "a page about a plan and its run, to look around in"),
        ("export", export_plan, _export, "write a plan's pipeline, or a run's losses, for others"),
    ):
        command = names.add_parser(name, help=text)
        command.set_defaults(command=run)
        options(command.add_argument)
    return parser


def _check(option: Option) -> None:
    option("plan", metavar="PLAN")
    option(
        "--lengths",
        action="append",
        default=[],
        metavar="FILE",
        help="the lengths of a task's samples, from beside the profile: proves that no microbatch "
        "of the task's table has too many tokens",
    )


_COPIES = "with --gantt: of programs on several devices draw all copies as well, not sends alone"


def _compare(option: Option) -> None:
    option("plan", metavar="PLAN")
    text = "the folder of a run of PLAN, or another plan: says what differs, and why one is faster"
    option("log", metavar="RUN|PLAN", help=text)
    option("--gantt", metavar="PNG", help="write a Gantt chart, planned over actual")
    option("--copies", action="store_true", help=_COPIES)
    option("--trace", metavar="JSON", help="write both as a trace")
    text = "write what the run taught, for build --corrections"
    option("--write-corrections", metavar="FILE", help=text)
    option("--json", action="store_true", help="print JSON")


def _report(option: Option) -> None:
    option("plan", metavar="PLAN")
    text = "the folder of a run of PLAN; and of others, to set beside the first"
    option("run", nargs="*", metavar="RUN", help=text)
    text = "one file that needs no network; any browser of the last three years opens it"
    option("-o", "--output", required=True, metavar="HTML", help=text)
    text = "write it anew while the run goes on, by 1/100 of its time, till stdin ends"
    option("--follow", action="store_true", help=text, group="expert")


def _export(option: Option) -> None:
    option("plan", metavar="PLAN|RUN")
    text = "torch-pipelining: a schedule of PLAN that torch.distributed.pipelining loads, and its "
    text += "stages; csv, tensorboard: losses and metrics of the run in folder RUN, by step"
    option("--format", choices=EXPORTS, required=True, help=text)
    option("-o", "--output", required=True, metavar="DIR")


def _build(option: Option) -> None:
    text = "for devices of several kinds one of each, of the same tasks"
    option("profile", nargs="+", metavar="PROFILE", help=text)
    option("-o", "--output", required=True, metavar="PLAN")
    add_options(option)
    text = "gantry; or hydra, the baseline to compare with"
    option("--policy", choices=get_args(Policy), default="gantry", help=text, group="to compare")
    _jobs(option, 1, "processes that search at the same time (default 1)")
    _setting(option)


def _jobs(option: Option, default: int | None, text: str) -> None:
    count = console.whole(1, 1 << 10)
    option("--jobs", type=count, default=default, metavar="N", help=text, group="expert")


def _book(option: Option) -> None:
    option("profile", nargs="+", metavar="PROFILE", help="as of build")
    option("-o", "--output", required=True, metavar="BOOK", help="like plans/x.book")
    sizes = console.listed(_sizes)
    text = "how many, like 4..8 or 2,4,8; the largest number chooses the microbatches of all"
    option("--devices", type=sizes, default=(), metavar="COUNTS", help=text)
    text = "several machines, like 1x4,2x4: 1 or 2 machines of 4 devices each"
    option("--nodes", type=console.listed(parse_nodes), default=(), metavar="NODES", help=text)
    add_options(option, *BOOKED)
    text = "processes that plan sizes at the same time, but for the largest (default: the cores)"
    _jobs(option, None, text)
    _setting(option)


def _survive(option: Option) -> None:
    option("book", metavar="BOOK")
    text = 'JSON: a list of [ms, "add" or "remove", name] of devices, or of nodes where the book '
    text += "has plans for several"
    option("--trace", required=True, metavar="FILE", help=text)
    _start(option)
    text = "devices that go say so before, so that nothing is lost with them"
    option("--notice", action="store_true", help=text)
    option("--plot", metavar="PNG", help="draw devices and work over time")
    option("--json", action="store_true", help="print JSON")


def _start(option: Option) -> None:
    text = "from a change until the run goes on, like 5s; or a run that has gone on, for what that "
    text += "took on average (default 10s)"
    option("--start", metavar="DURATION|RUN", help=text)


def _sizes(text: str) -> Sequence[int]:
    """A number of devices, or all from one to another one."""
    first, dots, last = text.partition("..")
    one = console.whole(1, 1 << 16)
    return range(one(first), one(last) + 1) if dots else [one(first)]


def _setting(option: Option) -> None:
    """Add the options that build and sweep share."""
    text = "for each plan (default 60)"
    option("--time-limit", type=console.seconds, default=60.0, metavar="SECONDS", help=text)
    seeds = console.whole(0, 2**31 - 1)
    option("--seed", type=seeds, default=0, help="of the search (default 0)", group="expert")
    option("--json", action="store_true", help="print JSON")


def _show(option: Option) -> None:
    option("plan", metavar="PLAN")
    text = "say instead what was tried to train tasks on several devices, and why it was left"
    option("--alternatives", action="store_true", help=text)
    option("--task", metavar="TASK", help="with --alternatives: this one only")
    text = "write a Gantt chart: all segments, and the ops of one round"
    option("--gantt", metavar="PNG", help=text)
    option("--copies", action="store_true", help=_COPIES)
    text = "with --gantt: draw the round that trains this step of a task, counted from 0 (default: "
    text += "a middle one of the longest segment)"
    option("--round", type=_round, metavar="TASK[:ROUND]", help=text)
    option("--trace", metavar="JSON", help="write a trace for ui.perfetto.dev")
    _start(option)
    option("--json", action="store_true", help="print JSON")


def _round(text: str) -> tuple[str, int | None]:
    """A task and, behind a colon, one of its steps."""
    task, colon, step = text.partition(":")
    return task, console.whole(0, 1 << 50)(step) if colon else None


def _estimate(option: Option) -> None:
    text = "; or your own tasks, my.py:tasks or hf:NAME, which say all but what the GPU is"
    option("model", metavar="MODEL", help=", ".join(MODELS) + text)
    text = "one, or several with commas between them: " + ", ".join(GPUS)
    option("--gpu", required=True, type=console.listed(str.lower), metavar="NAMES", help=text)
    text = "of an hour, like h100=2.5,4090=0.4, for what training costs in the table of GPUs"
    option("--price", type=console.listed(_price), default=(), metavar="GPU=PRICE", help=text)
    positive = console.whole(1, 1 << 28)
    option("--batch", type=positive, help="samples in a step")
    text = "tokens of a sample (default: the model's)"
    option("--seq", dest="sequence", type=positive, metavar="SEQ", help=text)
    text = "tokens of every sample: a list in JSON, or a numpy array (default: all are alike)"
    option("--lengths", metavar="FILE", help=text)
    text = "sizes to offer, like 1,2,4 (default: those that make a difference)"
    option("--microbatch", dest="microbatches", type=_wholes, metavar="SIZES", help=text)
    option("--optimizer", choices=MOMENTS, help="default adamw")
    text = "default: the best the GPU has; of your own tasks in fp32, fp32 or tf32"
    option("--dtype", choices=NUMBER, help=text)
    option("--steps", type=console.whole(1, 10**9), help="default 1000, or what your own tasks say")
    text = "memory of the GPU for plans (default: all but 1 GiB)"
    option("--device-memory", dest="device_bytes", type=console.size, metavar="SIZE", help=text)
    text = "host memory (default: that of a typical host)"
    option("--host-memory", dest="host_bytes", type=console.size, metavar="SIZE", help=text)
    text = "for the profile of one GPU; without it a table says what each GPU makes of the training"
    option("-o", "--output", metavar="PROFILE", help=text)


def _price(text: str) -> tuple[str, float]:
    """A GPU and what an hour of it costs."""
    gpu, _, price = text.partition("=")
    return gpu.lower(), console.positive(price, "price like h100=2.5")


def _sweep(option: Option) -> None:
    option("profile", metavar="PROFILE")
    sizes = console.listed(console.size)
    text = "budgets of a device, like 8GiB,16GiB,24GiB"
    option("--device-memory", required=True, type=sizes, metavar="SIZES", help=text)
    text = "rates like 12GB/s,25GB/s (default: as profiled); with both flags the first of one goes "
    text += "with the first of the other, and so on"
    option("--h2d", type=console.listed(console.rate), metavar="RATES", help=text)
    option("--d2h", type=console.listed(console.rate), metavar="RATES", help=text)
    text = "sizes like 1,2,4, each by itself (default: for each plan the best one)"
    option("--microbatch", type=_wholes, metavar="SIZES", help=text)
    option("--plot", metavar="PNG", help="draw step time over memory")
    count = console.whole(1, 1 << 16)
    option("--devices", type=count, default=1, help="how many (default 1)")
    add_options(option, "host_memory")
    _setting(option)


_wholes = console.listed(console.whole(1, 1 << 28))
