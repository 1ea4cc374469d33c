"""Where to cut a row of operations into layers: where little goes across, in even pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MOST = 64  # layers
_WIDER = 2  # a cut may be so many times as wide as the wider end of the piece it halves
_HEAVY = 1 / 8  # of all weight: a piece so heavy is cut however wide the cut is


@dataclass(frozen=True)
class Line:
    """`weights` of the operations, and how many parameters each is the first to use; `live[i]`:
    bytes across a cut before operation i, None where there may be none. `live` is one longer, its
    ends being the model's inputs and outputs."""

    weights: Sequence[float]
    parameters: Sequence[int]
    live: Sequence[int | None]


def cuts(line: Line, most: int = MOST) -> list[int]:
    """Where to cut, ascending: before which operations. At most `most` pieces, each of which is
    the first to use some parameter.

    The heaviest piece is halved first, where it is narrowest and, among places as narrow, most
    evenly.
    """
    sums = [0.0, *accumulate(line.weights)]
    held = [0, *accumulate(line.parameters)]
    pieces = [(0, len(line.weights))]
    done: list[tuple[int, int]] = []
    while pieces and len(pieces) + len(done) < most:
        piece = max(pieces, key=lambda p: (sums[p[1]] - sums[p[0]], -p[0]))
        pieces.remove(piece)
        where = _best(line, sums, held, piece, sums[-1] / most)
        if where is None:
            done.append(piece)
        else:
            pieces += [(piece[0], where), (where, piece[1])]
    return sorted(start for start, _ in pieces + done if start)


def _best(
    line: Line,
    sums: Sequence[float],
    held: Sequence[int],
    piece: tuple[int, int],
    least: float,
) -> int | None:
    """The narrowest place where both halves still weigh enough; None when there is none."""
    start, end = piece
    middle = (sums[start] + sums[end]) / 2
    found: tuple[int, float, int] | None = None
    for place in range(start + 1, end):
        width = line.live[place]
        weight = min(sums[place] - sums[start], sums[end] - sums[place])
        if width is None or weight < least or held[place] in (held[start], held[end]):
            continue
        candidate = (width, abs(sums[place] - middle), place)
        found = candidate if found is None else min(found, candidate)
    if found is None:
        return None
    ends = max(line.live[start] or 0, line.live[end] or 0)
    heavy = sums[end] - sums[start] > _HEAVY * sums[-1]
    return found[2] if heavy or found[0] <= _WIDER * ends else None
