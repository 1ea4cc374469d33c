"""Everything that is measured on a GPU, in one command that ends in time.

    python -m tests.gpu.suite --out runs/gpu
    python -m tests.gpu.suite --out runs/gpu-2 --only spill,prediction --plans runs/gpu/plans
    python -m tests.gpu.suite --out runs/tiny --device cpu --tiny

Run from the root of the repository. Cases come in the order of their importance, each with a time
limit; those that no longer fit before the deadline are listed as not run. The last thing printed
is one table; --out receives suite.json, which grows with every case, and all profiles, plans,
runs and logs. Exit codes: 0 nothing failed, or no device; 1 a case failed; 2 wrong usage.
"""

import argparse
import json
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from profiles import console
from tests.gpu import machine
from tests.gpu.cases import Case, chosen
from tests.gpu.remote import Worker
from tests.gpu.report import Row, table
from tests.gpu.tools import FOLDERS, Bench, Skip, Trouble

DEADLINE_S = 525.0
LEAST = 0.6  # of the time a case is expected to take must be left, or it is not begun
PATIENCE, GRACE_S = 2.0, 30.0  # a case may take so many times as long, and so much more
SPARE_S = 5.0  # for the table and the files
DEVICE_SHARE = 0.94  # of its memory, for the widest profile
TINY_BYTES = 1 << 30
SKIPPED = "skipped: no CUDA device here; --device cpu --tiny runs all cases with tiny models"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases; the exit code."""
    begun = time.monotonic()
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        cases = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu goes with --tiny only; the models are far too large for it")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(SKIPPED)
        return 0
    if (options.out / "suite.json").exists():
        parser.error(f"{options.out} holds an earlier run; give another folder")
    for folder in FOLDERS:
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    bench = _bench(options, begun)
    rows = _rows(cases, bench, machine.describe())
    if options.pack:
        _pack(bench.out)
    text = table(rows)
    (bench.out / "suite.txt").write_text(text + "\n")
    print(text)
    return int(any(row.status == "failed" for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.suite", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the suite itself")
    msg = "groups or names with commas between them: correctness,spill-1b3-16"
    parser.add_argument("--only", default="", metavar="CASES", help=msg)
    parser.add_argument("--plans", type=Path, metavar="DIR", help="plans of an earlier run")
    msg = f"all in all (default {DEADLINE_S:g})"
    parser.add_argument("--deadline", type=console.seconds, default=DEADLINE_S, help=msg)
    parser.add_argument("--host-memory", type=console.size, metavar="SIZE", help="default: all")
    msg = "of the large models: fp32, bf16-autocast, bf16 (default on CUDA) ..."
    parser.add_argument("--precision", metavar="NAME", help=msg)
    msg = "leave suite.json, suite.txt and one archive of the rest"
    parser.add_argument("--pack", action="store_true", help=msg)
    return parser


def _bench(options: argparse.Namespace, begun: float) -> Bench:
    on_cpu = options.device == "cpu"
    plans = options.plans.resolve() if options.plans else None
    return Bench(
        out=options.out.resolve(),
        device=options.device,
        tiny=options.tiny,
        device_bytes=TINY_BYTES if on_cpu else int(_device_bytes() * DEVICE_SHARE),
        host_bytes=options.host_memory or machine.host_bytes(),
        precision=options.precision or ("fp32" if on_cpu else "bf16"),
        plans=plans,
        until=begun + options.deadline - SPARE_S,
    )


def _device_bytes() -> int:
    """All of the device's memory; asking the driver makes no context that would take some of it."""
    mib = machine.gpu().get("memory.total", "")
    return int(mib) << 20 if mib.isdigit() else torch.cuda.get_device_properties(0).total_memory


def _rows(cases: Sequence[Case], bench: Bench, facts: dict[str, Any]) -> list[Row]:
    """Every case's row, each written to suite.json as soon as it is there."""
    rows: list[Row] = []
    for row in _run(cases, bench):
        rows.append(row)
        print(f"{row.name}: {row.status}, {row.seconds:.1f} s {row.note}", file=sys.stderr)
        settings = bench.to_json() | {"until": None}
        content = {"machine": facts, "suite": settings, "cases": [asdict(row) for row in rows]}
        (bench.out / "suite.json").write_text(json.dumps(content, indent=1) + "\n")
    facts["gpu_at_the_end"] = machine.gpu()
    (bench.out / "suite.json").write_text(json.dumps(content, indent=1) + "\n")
    return rows


def _run(cases: Sequence[Case], bench: Bench) -> Iterator[Row]:
    worker = Worker(bench)
    try:
        for case in cases:
            expected = case.expected_s(bench)
            if bench.left < LEAST * expected and not bench.tiny:
                note = f"{bench.left:.0f} s were left, it takes about {expected}"
                yield Row(case.name, "not run", 0.0, expected, note)
                continue
            if case.run:
                worker.rest()
            limit = time.monotonic() + PATIENCE * expected + GRACE_S
            yield _one(case, replace(bench, until=min(bench.until, limit)), worker, expected)
    finally:
        worker.rest()


def _one(case: Case, bench: Bench, worker: Worker, expected: int) -> Row:
    begun = time.monotonic()
    status, note = "ok", ""
    figures: dict[str, Any] = {}
    try:
        if case.run:
            figures = case.run(bench)
        else:
            answer = worker.ask(case.name, bench)
            status, note = answer["status"], answer.get("note", "")
            figures = answer.get("figures", {})
    except Skip as reason:
        status, note = "skipped", str(reason)
    except Trouble as trouble:
        status, note = "failed", str(trouble)
    except Exception as error:  # a mistake in one case must not end the others
        status, note = "failed", f"{type(error).__name__}: {error}"
    return Row(case.name, status, time.monotonic() - begun, expected, note, figures)


def _pack(out: Path) -> None:
    """One archive instead of the folders."""
    with tarfile.open(out / "made.tar.gz", "w:gz") as archive:
        for folder in FOLDERS:
            archive.add(out / folder, folder)
    for folder in FOLDERS:
        shutil.rmtree(out / folder)


if __name__ == "__main__":
    raise SystemExit(main())
