"""The turns of small rounds, as they would be written down by hand."""

import pytest
from msgspec import structs
from support import piped, synthetic

from planner.lowering.turns import turns
from planner.shards import Mode

CASES = {
    "two shards of a device": (
        "1f1b",
        ((0,), (1,), (1,)),
        "F0.0@0 F0.1@0 F1.0@1 B2.0@1 B1.0@1 F1.1@1 B0.0@0 "
        "B2.1@1 B1.1@1 B0.1@0 U2.0@1 U1.0@1 U0.0@0",
    ),
    "replicas": (
        "gpipe",
        ((0, 1),),
        "B0.0@0 B0.1@1 R0.0@0 U0.0@0",
    ),
    "halves": (
        "zero-bubble",
        ((0,), (1,)),
        "F0.0@0 F0.1@0 I1.0@1 I1.1@1 B0.0@0 W1.0@1 W1.1@1 B0.1@0 U1.0@1 U0.0@0",
    ),
}


def shown(case: str, *, norms: bool = False) -> str:
    """The turns of a case with layers all alike, in two microbatches."""
    named, places, _ = CASES[case]
    layers = len(places)
    task = synthetic.task("a", layers=layers, batch=2, heterogeneous=False, norms=norms)
    one = piped.piped(piped.halving(task), tuple(range(layers + 1)), places, named)
    return " ".join(f"{t.kind}{t.shard}.{t.number}@{t.device}" for t in turns(one, piped.LINKS))


@pytest.mark.parametrize("case", CASES)
def test_turns_begin_when_they_can(case: str) -> None:
    """Passes by their begin, and each shard's additions and update when no pass waits for them."""
    assert shown(case) == CASES[case][2]


def test_updates_wait_for_all_norms() -> None:
    """Norms are noted as shards are done; then all shards are updated, from the first on."""
    assert shown("two shards of a device", norms=True).split()[-6:] == (
        ["N2.0@1", "N1.0@1", "N0.0@0", "U0.0@0", "U1.0@1", "U2.0@1"]
    )


def test_parameters_that_others_read_change_when_all_are_done() -> None:
    """The owner of tied parameters is updated behind its own backwards and the holders' last."""
    made = piped.halving(synthetic.task("a", layers=2, batch=4))
    tied = structs.replace(made, ties=((0, 1),), tie_bytes=(1024,))
    one = piped.piped(tied, (0, 1, 2), ((0,), (1,)), "zero-bubble")
    assert [f"{t.kind}{t.shard}.{t.number}" for t in turns(one, piped.LINKS)][-4:] == (
        ["B0.3", "W1.3", "U1.0", "U0.0"]
    )


def test_what_comes_and_goes_is_updated_at_once() -> None:
    """Its bytes are needed by others; what stays is updated when its device has done its passes."""
    told = CASES["two shards of a device"][:2]
    task = synthetic.task("a", layers=3, batch=2, heterogeneous=False)
    found = {}
    for params in ("kept", "resident"):
        modes = [Mode(params, "device")] * 3  # type: ignore[arg-type]
        one = piped.piped(task, (0, 1, 2, 3), told[1], told[0], modes)
        line = [f"{t.kind}{t.shard}.{t.number}" for t in turns(one, piped.LINKS)]
        found[params] = line.index("U2.0") < line.index("B1.1")
    assert found == {"kept": True, "resident": False}
