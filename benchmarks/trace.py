"""What a trace costs: the share of a run that is spent on it, by clocks inside of that run.

    python benchmarks/trace.py FILE.jsonl VOCAB.json MERGES.txt [ROUNDS]

One worker, in this process. The clocks are around the making and writing of the runs of lines and
around the trace's own file at the end, which is mostly a sync. The medians are printed. Not
counted: placing one more track. Comparing runs with and without a trace instead showed nothing but
what else the machine did, some percent either way.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import tokpack
from tokpack.encoding import commit, part
from tokpack.encoding.tracks import Tracks

if TYPE_CHECKING:
    from collections.abc import Callable

TRACK = 2  # of one key: ids, lengths, lines


class Clock:
    """Adds up the time in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            self.seconds += time.perf_counter() - began
            return result

        return timed


def main(path: str, vocab: str, merges: str, rounds: str = "7") -> None:
    """Print the share of the work that grows with the input, and the time at the end."""
    clock, end = Clock(), Clock()
    part.__dict__["runs_of"] = clock.around(part.__dict__["runs_of"])
    commit.__dict__["write_trace"] = end.around(commit.__dict__["write_trace"])
    write = Tracks.write
    timed = clock.around(write)

    def only_lines(tracks: Tracks, track: int, values: Any) -> None:
        (timed if track == TRACK else write)(tracks, track, values)

    setattr(Tracks, "write", only_lines)  # noqa: B010
    files: dict[str, Any] = {"vocab_file": vocab, "merge_file": merges}
    shares, ends = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(rounds)):
            clock.seconds = end.seconds = 0.0
            began = time.perf_counter()
            output = f"{folder}/{number}"
            manifest = tokpack.encode(path, output, workers=1, trace=True, **files)
            shares.append(clock.seconds / (time.perf_counter() - began))
            ends.append(end.seconds)
            if manifest.trace is None:
                raise SystemExit("there is no trace")
    share, last = statistics.median(shares), statistics.median(ends)
    print(f"{manifest.documents} documents: {share:.2%} of a run, {last * 1e3:.1f} ms at its end")


if __name__ == "__main__":
    main(*sys.argv[1:])
