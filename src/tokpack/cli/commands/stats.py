"""``tokpack stats``: figures about all documents and tokens of datasets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tokpack import __version__
from tokpack.cli import shards, terminal
from tokpack.cli.inputs import load, matching_datasets, of_dataset, tokenizer_paths
from tokpack.cli.parser import Group, Page, flags, number
from tokpack.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from tokpack.look import Stats

PAGE = Page(
    "stats",
    "Count over all documents and tokens of datasets: lengths, frequencies, duplicates, faults.",
    (
        Group(
            "flags",
            flags(
                """
                --html FILE             also write a page with plots
                --overwrite             let --html replace a file that is not such a page
                --json                  print everything as JSON on stdout
                --threads, --workers N  threads that count (all cores, 8 at most)
                --top N                 tokens shown (10)
                --seq-length N          also pack documents, best-fit, into samples of N tokens, and
                                        show how full they are
                """,
                threads={"default": 0},
                top={"type": number(0), "default": 10},
                seq_length={"type": number(1)},
            ),
        ),
        shards.ON_A_CLUSTER,
        *of_dataset(),
    ),
    """\
INPUT is the PREFIX of a dataset's .bin and .idx; several are shown side by side.

examples:
  tokpack stats the-pile
  tokpack stats wiki owt code --html report.html      one file, plots and all, for an e-mail
  tokpack stats chats --seq-length 4096               how full best-fit packing makes samples
  tokpack stats other --vocab-file vocab.json --merge-file merges.txt
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack stats``."""
    if not arguments.inputs:
        raise UsageError("no dataset: name the PREFIX of a .bin and .idx")
    arguments.inputs = matching_datasets(arguments.inputs)
    if arguments.html:
        _check_page(arguments)
    datasets = _counted(arguments)
    if arguments.html:
        from tokpack.look import page
        from tokpack.storage.disk import replace_file

        _check_page(arguments)
        footer = f"Made by tokpack {__version__} on {time.strftime('%Y-%m-%d %H:%M %Z')}"
        text = page(datasets, footer=footer)
        replace_file(arguments.html, [text.encode("utf-8", "backslashreplace")])  # names of files
    if arguments.json:
        terminal.put_json({"datasets": datasets})
    else:
        from tokpack.cli.figures import print_stats

        print_stats(datasets, top=arguments.top)
    if arguments.html:
        terminal.say(f"tokpack: wrote {arguments.html}")
    return 0


def _counted(arguments: argparse.Namespace) -> list[Stats]:
    """The figures of each dataset; of several also what each shares with the others."""
    from tokpack.look import DuplicateFinder, stats

    across = DuplicateFinder() if arguments.inputs[1:] else None
    datasets = []
    for prefix in arguments.inputs:
        dataset, spelling = load(prefix, arguments)
        with terminal.Reporter() as report:
            threads = arguments.threads
            tasks = shards.tasks_of(arguments, prefix, report)
            one = stats(
                dataset, spelling, threads=threads, progress=report, across=across, tasks=tasks
            )
        if arguments.seq_length:
            from tokpack.samples import GPTDataset

            packed = GPTDataset(prefix, arguments.seq_length, packing="best_fit")
            one = one.with_packing(packed.packing_stats)
        datasets.append(one)
    if not across:
        return datasets
    shared = across.result()
    return [replace(one, shared=too) for one, too in zip(datasets, shared, strict=True)]


def _check_page(arguments: argparse.Namespace) -> None:
    """Look at what the page would replace, before all is counted and again after it."""
    from tokpack.dataset.outputs import dataset_files
    from tokpack.look import PAGE_KIND
    from tokpack.storage.disk import check_outputs

    inputs = [file for prefix in arguments.inputs for file in dataset_files(prefix)]
    check_outputs(
        [(arguments.html, PAGE_KIND)],
        [*inputs, *tokenizer_paths(arguments)],
        overwrite=arguments.overwrite,
    )
