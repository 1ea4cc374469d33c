"""Plans of all kinds against the memory meter: no proven plan runs out of what it reserved.

    python -m tests.benchmarks.reserves [--plans 500] [--seed 0] [--only TEXT]

A case is one of 24 models as people write them, tiny, at some length, precision and number of
microbatches, in some layout and order, with some memory (`support.reserved`). Each plan that
`build` makes and proves is run for two rounds on emulated devices. Prints, by order and layout, how
many plans ran, how many of them split backwards in two, and the most that one took of its memory;
then the cases that took more than they had. Exits with 1 if there are any.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from support.quick import quickly
from tqdm import tqdm

from plans import InvalidPlan
from profiles import console
from tests.benchmarks.reserved import Case, Outcome, cases, outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plans and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=console.whole(1, 1 << 20), default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose description has this text")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with quickly(), tqdm(total=options.plans, unit="plan", file=sys.stderr) as bar:
        wanted = (case for case in cases(options.seed) if options.only in str(case))
        done = [*islice(_ran(wanted, bar), options.plans)]
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for one in done:
        rows.setdefault((one.case.order, one.case.layout), []).append(one)
    print("order        layout   plans  split failed  most of memory")
    for (order, layout), own in sorted(rows.items()):
        split, failed = sum(one.split for one in own), sum(bool(one.failure) for one in own)
        most = max(one.used for one in own)
        print(f"{order:12} {layout:7} {len(own):6} {split:6} {failed:6} {most:15.1%}")
    told = [f"{one.case}: {one.failure}" for one in done if one.failure]
    models = len({one.case.model.name for one in done})
    last = f"{len(done)} plans of {models} models, {len(told)} took more memory than they had"
    print(*told, last, sep="\n")
    return 1 if told else 0


def _ran(wanted: Iterable[Case], bar: "tqdm[None]") -> Iterator[Outcome]:
    """The outcomes of those that have a plan; of builds that end without a proof it is said why."""
    for case in wanted:
        try:
            made = outcome(case)
        except InvalidPlan as error:
            print(f"no plan: {case}: {' '.join(str(error).split())}")
            continue
        if made:
            yield made
            bar.update()


if __name__ == "__main__":
    sys.exit(main())
