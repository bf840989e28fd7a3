"""How the benchmarks measure: candidates take turns in one process, and ratios are taken turn by turn.

A machine's clocks and its neighbours change from second to second, and change all candidates of a round
alike: the median of the rounds' ratios is steadier than a ratio of medians.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A batch of calls takes at least so long. On a GPU JAX needs about half a millisecond more for the first of
# its calls than for one that is queued behind others, a CUDA graph less; neither is to count.
_BATCH_SECONDS = 100e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 200


@dataclass(frozen=True)
class Candidate:
    """One way to do the work.

    Attributes:
      call: starts the work, and may return before it is done.
      wait: waits until all work that was started is done; takes what the last `call` returned.
      launches: how many launches one call makes; times are for one launch.
    """

    call: Callable[[], Any]
    wait: Callable[[Any], Any] = lambda result: None
    launches: int = 1

    def batch(self, calls: int) -> float:
        """Seconds for so many calls, the wait for the last one included."""
        start = time.perf_counter()
        result = None
        for _ in range(calls):
            result = self.call()
        self.wait(result)
        return time.perf_counter() - start


def measure(candidates: Mapping[str, Candidate], *, seconds: float = 2.0) -> dict[str, list[float]]:
    """Seconds for one launch of each candidate, round by round.

    Args:
      candidates: by name. They take turns, and another one begins each round.
      seconds: to spend on the rounds, about; before them each candidate is called until it is warm.
    """
    calls = {name: _calls_in_a_batch(candidate) for name, candidate in candidates.items()}
    one_round = sum(candidate.batch(calls[name]) for name, candidate in candidates.items())
    rounds = min(max(int(seconds / one_round), _FEWEST_ROUNDS), _MOST_ROUNDS)
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            first = number % len(names)
            for name in [*names[first:], *names[:first]]:
                candidate = candidates[name]
                times[name].append(candidate.batch(calls[name]) / (calls[name] * candidate.launches))
    finally:
        if collecting:
            gc.enable()
    return times


def _calls_in_a_batch(candidate: Candidate) -> int:
    for _ in range(3):  # the first call compiles; runtimes record graphs at the second
        candidate.batch(1)
    calls = 1
    while (took := candidate.batch(calls)) < _BATCH_SECONDS / 2:
        calls *= 2
    return max(1, round(calls * _BATCH_SECONDS / took))


def quartiles(values: Sequence[float]) -> list[float]:
    lower, _, upper = statistics.quantiles(values, n=4)
    return [lower, upper]


def summarize(case: str, times: Mapping[str, Sequence[float]], *, base: str) -> dict[str, Any]:
    """What the report says of one case: medians and quartiles in microseconds, and ratios to `base`."""
    return {
        "case": case,
        "base": base,
        "rounds": len(times[base]),
        "candidates": {name: _summarize_candidate(of_name, times[base]) for name, of_name in times.items()},
    }


def _summarize_candidate(times: Sequence[float], base: Sequence[float]) -> dict[str, Any]:
    ratios = [own / other for own, other in zip(times, base, strict=True)]
    return {
        "median_us": statistics.median(times) * 1e6,
        "quartiles_us": [value * 1e6 for value in quartiles(times)],
        "ratio": statistics.median(ratios),
        "ratio_quartiles": quartiles(ratios),
    }


def summarize_single(case: str, times: Mapping[str, float], *, base: str) -> dict[str, Any]:
    """Like `summarize`, for work that was done once: seconds of each candidate."""
    return {
        "case": case,
        "base": base,
        "rounds": 1,
        "candidates": {
            name: {"median_us": value * 1e6, "ratio": value / times[base]} for name, value in times.items()
        },
    }
