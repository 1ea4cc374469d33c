"""What the suite says in the end: one table, a line per case."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiles.console import columns
from profiles.units import show_bytes

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """What came of a case. status: ok, failed, skipped or not run."""

    name: str
    status: str
    seconds: float
    expected_s: int
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def _primitives(f: Figures) -> str:
    links, pinned, queue = f["links"], f["pinning"]["huge, 8 threads"], f["full_queue"]
    return (
        f"GB/s in {links['h2d']}, out {links['d2h']}, both {links['both']}; 4 GiB locked in "
        f"{pinned['fill_s'] + pinned['lock_s']:.2f} s; a launch beside a full queue takes "
        f"{queue['launch_us'][0]} us"
    )


def _correctness(f: Figures) -> str:
    together = ", interleaved" if f["together"] > 1 else ""
    return (
        f"same bits: {f['shards']} shards, {f['copies']} copies a step, "
        f"{f['microbatches']} microbatches{together}"
    )


def _spill(f: Figures) -> str:
    taxes = [f"tax {f[key]:.2f} {what}" for key, what in _TAXES if key in f]
    layers = [f"{f['layers']} layers"] if "layers" in f else []
    plain = [f"in memory: {f['plain']}"] if "plain" in f else []
    parts = [
        f"{f['tokens_per_s']:,.0f} tokens/s",
        f"peak {show_bytes(f['peak_bytes'])} of {show_bytes(f['budget_bytes'])}",
        *taxes,
        f"roofline {f['roofline']:.2f}",
        f"planned/actual step {f['period']:.2f}",
    ]
    return ", ".join(parts + layers + plain)


_TAXES = (("tax_same", "(same recomputation)"), ("tax_best", "(best in memory)"))


def _prediction(f: Figures) -> str:
    op = "-" if f["median_op_error"] is None else f"{f['median_op_error']:.1%}"
    return (
        f"makespan {f['makespan_error']:+.1%}, median op error {op}, "
        f"peak {f['peak_share']:.2f} of planned"
    )


def _overlap(f: Figures) -> str:
    return f"without overlap {f['ratio']:.2f} times as long"


def _peers(f: Figures) -> str:
    split = f"{f['microbatches']} microbatches"
    theirs = f"theirs {f['theirs_per_s']:,.0f} tokens/s ({split})"
    if "faster" not in f:
        return f"{theirs}, ours: {f['ours']}"
    return f"ours {f['ours_per_s']:,.0f} tokens/s, {theirs}: {f['faster']:.2f} times as fast"


def _budgets(f: Figures) -> str:
    return f"{f['budgets']} of {f['planned']} budgets held, at most {f['worst_share']:.3f} taken"


def _processes(f: Figures) -> str:
    return (
        f"same bits as one process; a step takes {f['step_us'] / 1000:.1f} ms, there "
        f"{f['alone_us'] / 1000:.1f}"
    )


SENTENCES: dict[str, Callable[[Figures], str]] = {
    "primitives": _primitives,
    "correctness": _correctness,
    "spill": _spill,
    "prediction": _prediction,
    "overlap": _overlap,
    "peers": _peers,
    "budgets": _budgets,
    "processes": _processes,
}


def sentence(row: Row) -> str:
    """The figures of a case in a line, or why there are none."""
    if row.status != "ok":
        return row.note
    return SENTENCES[row.name.partition("-")[0]](row.figures)


def table(rows: Sequence[Row]) -> str:
    """One line per case."""
    lines = [("case", "status", "s", "what")]
    lines += [(row.name, row.status, f"{row.seconds:.0f}", sentence(row)) for row in rows]
    return "\n".join(columns(lines))
