"""Stalls: segments and moves in which nothing ends for too long, and what waits for them."""

import time
from collections.abc import Iterator, Mapping

from executor.records import Failure, Options, Recorder
from executor.replay.moves import Moves
from executor.replay.segment import SegmentRun
from executor.replay.turns import Turns
from plans.schema import Plan


class Watch:
    """Looks for stalls in segments and moves.

    Where a failure ends the run, the run is stalled when no op ends in any of them. With
    `keep_going` each segment counts alone: a silent one fails and is stopped; one that is silent
    as long again is lost, and the tasks fail that need what its ops may still use. A silent move
    stalls the run.
    """

    def __init__(
        self, plan: Plan, options: Options, recorder: Recorder, turns: Turns, moves: Moves
    ) -> None:
        self.lost: dict[int, SegmentRun] = {}  # stopped, and some op does not return
        self._limit_s = options.stall_seconds or _patience_s(plan)
        self._keep_going = options.keep_going
        self._recorder, self._turns, self._moves = recorder, turns, moves
        self._failed: dict[int, float] = {}  # when a segment was found silent

    def look(self, active: dict[int, SegmentRun]) -> Iterator[Failure]:
        """The failures by silence. Segments that are lost leave `active`."""
        now = time.perf_counter()
        moved = [] if self._moves.latest is None else [self._moves.latest]
        # A segment that has ended waits only for this thread, which may have been writing.
        latest = {i: self._recorder.latest[i] for i, s in active.items() if not s.ended}
        silence = now - max(moved, default=now)
        if not self._keep_going:
            silence = max(silence, now - max([*moved, *latest.values()], default=now))
        if silence > self._limit_s:
            yield Failure((), self._stalled(silence, self.state(active)), fatal=True)
        elif self._keep_going:
            for index, at in latest.items():
                if now - max(at, self._failed.get(index, at)) > self._limit_s:
                    yield from self._silent(index, now, now - at, active)
            yield from self._held_up()

    def state(self, active: Mapping[int, SegmentRun]) -> str:
        """A text of the ops that run, then of those that wait and for which op."""
        lines = [line for segment in active.values() for line in segment.states()]
        lines.sort(key=lambda line: " runs " not in line)
        lines += filter(None, [self._moves.state()])
        return "; ".join(lines) or "no op"

    def _silent(
        self, index: int, now: float, silence: float, active: dict[int, SegmentRun]
    ) -> Iterator[Failure]:
        """Fail a segment that still goes on; give up one that was stopped."""
        segment = active[index]
        if segment.stopped:
            self.lost[index] = active.pop(index)
        else:
            self._failed[index] = now
            yield segment.stuck(self._stalled(silence, "; ".join(segment.states())))

    def _held_up(self) -> Iterator[Failure]:
        """Fail tasks that wait for a lost segment or would use host memory it may still write."""
        if not self.lost:
            return
        held = "; ".join(line for segment in self.lost.values() for line in segment.states())
        for index in self._turns.blocked(self.lost):
            text = f"segment {index} waits for ops of a dropped task that do not return: {held}"
            yield Failure(self._turns.program(index).tasks, text)
        if task := self._moves.blocked(self.lost, self._turns.touches):
            text = f"its place in the host store is used by ops that do not return: {held}"
            yield Failure((task,), text)

    def _stalled(self, silence: float, state: str) -> str:
        return (
            f"no op ended for {silence:.1f} s, the limit is {self._limit_s:g}: {state}; "
            "raise --stall-seconds if it is only slow"
        )


def _patience_s(plan: Plan) -> float:
    """Twenty times the longest op the plan predicts, a minute at least."""
    ops = [op for p in plan.programs for phase in (p.enter, p.round, p.leave) for op in phase]
    return max(60.0, 20 * max(op.end_us - op.start_us for op in ops) / 1e6)
