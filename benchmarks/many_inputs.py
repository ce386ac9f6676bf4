"""What the parent takes for a million inputs, with an encoder that costs nothing.

    python benchmarks/many_inputs.py                    1,000,000 inputs of 30 KB
    python benchmarks/many_inputs.py --inputs 100000

Inputs are not looked at, and each gives ready ids; everything else is real: plan, journal, pieces,
commit, manifest. A second run is stopped before its commit and goes on, a third finds the dataset
complete. Processor seconds by step, and the largest memory of each process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RUNS = ("whole", "stopped", "resumed", "complete")
BYTES = 30_000
IDS = np.arange(1000, dtype=np.uint16)
LENGTHS = np.full(10, 100, np.int32)
# records, lines, rejected, bytes read and of text; documents, sequences, tokens, and so on
COUNTS = (10, 10, 0, BYTES, BYTES, 10, 10, 1000, 0, 0, 28_000, 0)


class StoppedError(Exception):
    """What ends the run that is to be resumed."""


def one(folder: str, inputs: int, *, stops: bool) -> None:
    """One run in this process; prints a row for each step."""
    from tokpack.encoding import EncodeOptions, check, part, planned, run, work
    from tokpack.sources import Source

    def encode_part(self: Any, piece: Any, tracks: Any, _limit: int | None) -> None:
        piece.blocks = ["0" * 16] * len(piece.counts)
        for row in range(len(piece.counts)):
            piece.counts[row] = COUNTS
            tracks.write(0, IDS)
            tracks.write(1, LENGTHS)
        self._attend()

    def stop(*_: Any) -> None:
        raise StoppedError

    def plan(options: EncodeOptions) -> planned.Planned:
        names = (f"/data/shard-{n // 1000:05d}/document-{n:08d}.jsonl" for n in range(inputs))
        sources = [
            Source(name, name, "jsonl", "", BYTES, 1_700_000_000 * 10**9 + n)
            for n, name in enumerate(names)
        ]
        spent["-"] = time.process_time()  # that is not tokpack's
        means = planned.load_means(options)
        cut = planned.make_plan(options, sources, planned.cut(sources, 1), means)
        return planned.Planned(cut, means, 1)

    def timed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            begun = time.process_time()
            try:
                return function(*given, **named)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - begun

        setattr(owner, name, call)

    spent: dict[str, float] = {}
    replaced: dict[Any, tuple[str, Any]] = {
        part.PartEncoder: ("encode_part", encode_part),
        check.SelfCheck: ("_run", lambda *_: None),
        Source: ("fingerprint", lambda _: "0" * 32),
    }
    for owner, (name, value) in replaced.items():
        setattr(owner, name, value)
    setattr(Source, "is_pipe", property(lambda _: False))  # noqa: B010
    for owner, name in ((run, "open_plan"), (work, "found_pieces"), (run, "stage")):
        timed(owner, name)
    if stops:
        setattr(run, "stage", stop)  # noqa: B010
    options = EncodeOptions(
        inputs=("-",),
        output=f"{folder}/out",
        vocab_file=f"{folder}/vocab.json",
        merge_file=f"{folder}/merges.txt",
    )
    with contextlib.suppress(StoppedError):
        run.encode_planned(lambda: plan(options), options)
    spent["all"] = time.process_time() - spent.pop("-")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({**{name: round(s, 1) for name, s in spent.items()}, "MB": memory}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--work", type=Path, help="where to write (a temporary folder)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        folder, run = arguments.one
        one(folder, arguments.inputs, stops=run == "stopped")
        return
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's letters for bytes
    letters = [*shown, *range(256, 512 - len(shown))]
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        vocabulary = {chr(letter): i for i, letter in enumerate(letters)}
        Path(folder, "vocab.json").write_text(json.dumps({**vocabulary, "<|endoftext|>": 256}))
        Path(folder, "merges.txt").write_text("#version: 0.2\n")
        for run in RUNS:
            if run == "stopped":
                for path in Path(folder).glob("out.*"):
                    path.unlink()
            words = [sys.executable, __file__, "--inputs", str(arguments.inputs)]
            done = subprocess.run(
                [*words, "--one", folder, run], stdout=subprocess.PIPE, check=True
            )
            print(f"{run:10s} {done.stdout.decode().strip()}", flush=True)


if __name__ == "__main__":
    main()
