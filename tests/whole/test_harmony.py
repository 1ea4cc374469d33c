"""Harmony's rule of cost, the bound below it, and its benchmark."""

import json
from itertools import chain, combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.benchmarks import harmony
from tests.support.harmony_bound import lower_bound
from tests.support.harmony_profile import Profile
from tests.support.harmony_rule import Schedule, simulate

RUNS = json.loads((Path(__file__).parents[1] / "data" / "harmony_bert_96.json").read_text())


def _bert() -> dict[str, Any]:
    """The file, its lists unrolled."""

    def unrolled(runs: list[list[int]]) -> list[int]:
        return [value for value, layers in runs for _ in range(layers)]

    tables = {key: RUNS[key] for key in ("fwd_us", "bwd_us", "mem_fwd_bytes", "mem_bwd_bytes")}
    by_size = {key: {u: unrolled(v) for u, v in table.items()} for key, table in tables.items()}
    lists = ("W_bytes", "B_bytes", "X_bytes_per_sample", "upd_cpu_us")
    return RUNS | {key: unrolled(RUNS[key]) for key in lists} | by_size


def _tiny(minibatch: int = 2, cap: int = 10**9) -> dict[str, Any]:
    """Two layers. A byte takes 1 µs on every link while two GPUs swap."""
    return {
        "model": {"name": "tiny"},
        "constants": {
            "bw_swap_bytes_per_s": 2e6, "bw_p2p_bytes_per_s": 1e6, "bw_msg_bytes_per_s": 4e6,
            "del_us_per_task": 5, "memory_cap_bytes": cap, "minibatch": minibatch, "gpus": 2,
        },
        "targets": {},
        "W_bytes": [9, 16], "B_bytes": [1, 4], "X_bytes_per_sample": [3, 4], "upd_cpu_us": [7, 9],
        "fwd_us": {"1": [100, 200], "2": [200, 400]},
        "bwd_us": {"1": [300, 500], "2": [600, 1000]},
        "mem_fwd_bytes": {"1": [20, 30], "2": [30, 40]},
        "mem_bwd_bytes": {"1": [40, 60], "2": [60, 80]},
    }  # fmt: skip


@pytest.mark.parametrize("rule", harmony.published(_bert()), ids=lambda rule: rule.name)
def test_the_rule_gives_the_published_makespans(rule: harmony.Published) -> None:
    """To 0.1 ms, by pipeline and by replicas, with prefetch and without, 2 GPUs and 4.

    The file's times are rounded to µs and two makespans to ms.
    """
    rounded = 5e-4 if rule.name.startswith("D256") else 0
    assert rule.rule_s == pytest.approx(rule.theirs_s, rel=0, abs=1e-4 + rounded)


ONE, TWO = ((1,), (1,)), ((1, 1), (1, 1))
SLOW = {"X_bytes_per_sample": [600, 800]}
LATE = {"constants": _tiny()["constants"] | {"bw_msg_bytes_per_s": 4e3}}


@pytest.mark.parametrize(
    ("prefetch", "sizes", "gpus", "changed", "makespan"),
    [
        (True, ONE, (0, 1, 0), {}, 838.0),
        (False, ONE, (0, 1, 0), {}, 841.0),
        (True, ONE, (0, 0, 0), {}, 947.5),  # boundaries over the host, at twice the rate
        (True, ((2,), (1, 1)), (0, 1, 0), {}, 1453.0),  # so is the turn's, in other microbatches
        (True, TWO, (0, 0, 0), SLOW, 3932.0),  # inputs wait until the pack before is deleted
        (True, ONE, (0, 1, 1), LATE, 3350.0),  # a stashed input that another GPU wants
    ],
)
def test_the_rule_gives_what_is_worked_out_by_hand(
    prefetch: bool,
    sizes: tuple[tuple[int, ...], ...],
    gpus: tuple[int, ...],
    changed: dict[str, Any],
    makespan: float,
) -> None:
    """One forward pack, the turn, one more backward pack."""
    schedule = Schedule((1,), (1, 2), *sizes, gpus)
    assert simulate(Profile(_tiny() | changed), schedule, prefetch) == makespan


def test_the_bound_is_what_is_worked_out_by_hand() -> None:
    """Two packs each way at most fit; one sample.

    On two GPUs the forward pass takes 100 and waits for weights for 10, half of that on each; then
    gradients take 500. That is longer than half of everything, and than everything on one GPU.
    """
    assert lower_bound(Profile(_tiny(minibatch=1, cap=95))) == (555.0, "path")


def test_a_pack_holds_its_layers_memory_with_inner_boundaries_once() -> None:
    """40 + 60 bytes, less the 4 between; between measured microbatches memory is interpolated."""
    at = [Profile(_tiny(cap=cap)).fits(True, 1, 0, 2) for cap in (95, 96)]
    assert at == [False, True]
    wide = _tiny(cap=95) | {"mem_bwd_bytes": {"1": [40, 60], "3": [80, 80]}}
    assert Profile(wide).fits(True, 2, 0, 1)  # 60
    assert not Profile(wide | {"constants": wide["constants"]}).fits(True, 2, 0, 2)  # 60 + 70 - 8


def _random(rng: Random, layers: int, minibatch: int) -> Profile:
    """Any of computing, swapping, deleting and updating may be what counts."""

    def some(most: int) -> list[int]:
        return [rng.randint(1, most) for _ in range(layers)]

    file = _tiny(minibatch, cap=rng.choice((400, 700, 10**6)))
    file["constants"] |= {"del_us_per_task": rng.choice((1, 50)), "gpus": rng.choice((1, 1, 2))}
    tables: dict[str, dict[str, list[int]]] = {key: {} for key in _TABLES}
    forward, extra = some(80), some(160)
    for size in range(1, minibatch + 1):
        tables["fwd_us"][str(size)] = [f * (size + 1) // 2 for f in forward]
        tables["bwd_us"][str(size)] = [
            (f + e) * (size + 1) // 2 for f, e in zip(forward, extra, strict=True)
        ]
        tables["mem_fwd_bytes"][str(size)] = [50 * size] * layers
        tables["mem_bwd_bytes"][str(size)] = [100 * size] * layers
    lists = {"W_bytes": some(rng.choice((10, 300))), "B_bytes": [0] * layers,
             "X_bytes_per_sample": some(9), "upd_cpu_us": some(rng.choice((5, 200)))}  # fmt: skip
    return Profile(file | tables | lists)


_TABLES = ("fwd_us", "bwd_us", "mem_fwd_bytes", "mem_bwd_bytes")


def _ends(layers: int) -> list[tuple[int, ...]]:
    inner = (combinations(range(1, layers), count) for count in range(layers))
    return [(*cut, layers) for cut in chain.from_iterable(inner)]


def _every(profile: Profile) -> list[Schedule]:
    """All schedules with more than one pack, and those of replicas."""
    made = []
    for backward in _ends(profile.layers)[1:]:
        forwards = _ends(backward[-2])
        parts = (_parts(profile.minibatch), _parts(profile.minibatch))
        for forward, *sizes in product(forwards, *parts):
            if _allowed(profile, forward, backward, *sizes):
                count = len(forward + backward)
                for gpus in product(range(profile.gpus), repeat=count - 1):
                    made.append(Schedule(forward, backward, *sizes, (0, *gpus)))
                if profile.minibatch == profile.gpus:
                    one = Schedule(forward, backward, (1,), (1,), (0,) * count, replicas=True)
                    made.append(one)
    return made


def _parts(total: int) -> list[tuple[int, ...]]:
    return [
        tuple(end - first for first, end in zip((0, *ends), ends, strict=False))
        for ends in _ends(total)
    ]


def _allowed(
    profile: Profile,
    forward: tuple[int, ...],
    backward: tuple[int, ...],
    forward_sizes: tuple[int, ...],
    backward_sizes: tuple[int, ...],
) -> bool:
    return all(
        profile.fits(back, max(sizes), first, end)
        for back, ends, sizes in (
            (False, forward, forward_sizes),
            (True, backward, backward_sizes),
        )
        for first, end in zip((0, *ends), ends, strict=False)
    )


@pytest.mark.parametrize("seed", range(24))
def test_the_bound_is_below_every_schedule_of_a_small_chain(seed: int) -> None:
    """All cuts, microbatches and placements; and not far below. On one GPU it is nearly reached."""
    rng = Random(seed)
    profile = _random(rng, *rng.choice(((4, 2), (3, 3))))
    best = min(simulate(profile, schedule) for schedule in _every(profile))
    assert 0.4 * best < lower_bound(profile).us <= best


def test_the_benchmark_ends_with_1_where_ours_is_not_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a generous time it is, and the gap is printed."""
    target = {
        "makespan_s": 838e-6, "u_fwd": 1, "u_bwd": 1, "minibatch": 1,
        "pack_fwd_ends": [1], "pack_bwd_ends": [1, 2],
    }  # fmt: skip
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(_tiny() | {"targets": {"prefetch": target}}))
    monkeypatch.setattr(harmony, "STEPS", 100)
    for below, code in (("10", 0), ("0.0001", 1)):
        monkeypatch.setattr("sys.argv", ["harmony", str(path), "--below", below, "--json"])
        assert harmony.main() == code
        row = json.loads(capsys.readouterr().out)["packs"]
        assert row["gap"] == 1 - row["bound_s"] / row["ours_s"] >= 0
