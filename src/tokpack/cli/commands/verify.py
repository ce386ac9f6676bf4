"""``tokpack verify``: is a dataset whole, every token what it should be."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.cli import shards, terminal
from tokpack.cli.inputs import matching_datasets, of_dataset, tokenizer_given
from tokpack.cli.parser import Group, Page, flag_names, flags, number
from tokpack.errors import FormatError, InputError, UsageError, option
from tokpack.quantities import bytes_text, counted, time_text
from tokpack.storage import is_url
from tokpack.storage.disk import not_a_dataset

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.documents import Conservation, SampleReport

RATE_BYTES = 10_000_000  # with less a rate says how long a start takes

PAGE = Page(
    "verify",
    "Check datasets: header, counts, offsets, documents, token ids, EODs, checksums.",
    (
        Group(
            "check",
            flags(
                """
                --quick         check all but the tokens: takes milliseconds
                --vocab-size N  token ids must be below N (as the manifest says)
                --eod ID        each document must end with ID (as the manifest says)
                --json          print the results as JSON on stdout
                """,
                eod={"type": number(0)},
            ),
        ),
        shards.ON_A_CLUSTER,
        Group(
            "check against the inputs",
            flags(
                """
                --against INPUT...  compare all documents with those of these inputs
                --sample N          encode N random documents again, from the original inputs
                --input-format F    format of the inputs, as for encode (as the manifest says)
                """,
                against={"nargs": "+"},
                sample={"type": number(1)},
            ),
        ),
        *of_dataset("tokenizer, for the vocabulary size"),
    ),
    """\
INPUT is the PREFIX of PREFIX.bin and .idx, one of these files, or a folder with datasets. A good
dataset prints one line; a broken one prints its first fault, and the exit code is 1.

examples:
  tokpack verify the-pile wiki
  tokpack verify --quick data/
  tokpack verify wiki --against wiki.jsonl     no document lost, added or repeated
  tokpack verify wiki --sample 1000            a thousand documents, encoded again
  tokpack verify my-gpt2_text_document --tokenizer gpt2 --eod 50256
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack verify``."""
    if not arguments.inputs and len(arguments.against or ()) > 1:
        # The inputs may come first, typed or by the shell: --against data/*.jsonl pile.
        *arguments.against, last = arguments.against
        arguments.inputs = [last]
    prefixes = _prefixes(arguments)
    if not prefixes:
        raise UsageError("no INPUT: name the PREFIX of a dataset, or a folder with datasets")
    files = tokenizer_given(arguments)
    if arguments.against or arguments.sample:
        return _against(prefixes, arguments)
    if any(files.values()):
        from tokpack.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(**files)  # once for all datasets
        if arguments.vocab_size is None:
            arguments.vocab_size = tokenizer.vocab_size
    results = []
    for result in _verify(prefixes, arguments):
        results.append(result)
        if not result["ok"]:
            terminal.error(result["fault"])
        elif not arguments.json and not arguments.quiet:
            for part in terminal.folded(_line(result), sys.stdout):
                terminal.put(part)
            sys.stdout.flush()
    bad = sum(not result["ok"] for result in results)
    if arguments.json:
        terminal.put_json({"datasets": results})
    if bad and len(results) > 1:
        terminal.say(f"tokpack: {bad} of {len(results)} datasets are broken or missing")
    return 1 if bad else 0


def _against(prefixes: Sequence[str], arguments: argparse.Namespace) -> int:
    """Compare a dataset with its inputs, or a sample of it."""
    from tokpack.documents import compare_with_inputs, verify_sample

    flag = "sample" if arguments.sample else "against"
    if len(prefixes) > 1:
        raise UsageError(f"{option(flag)} takes one dataset, not {len(prefixes)}")
    flags = {name: getattr(arguments, name) for name in ("quick", "vocab_size", "eod")}
    for name, value in flags.items():
        if value is not None and value is not False:
            raise UsageError(
                f"{option(name)} belongs to the check of tokens, which {option(flag)} does not do: "
                "run verify once with each"
            )
    more = {"input_format": arguments.input_format, **tokenizer_given(arguments)}
    outcome: Conservation | SampleReport
    with terminal.Reporter() as report:
        if arguments.sample:
            inputs = arguments.against or ()
            outcome = verify_sample(prefixes[0], arguments.sample, inputs, progress=report, **more)
            ok = not outcome.wrong
        else:
            outcome = compare_with_inputs(prefixes[0], arguments.against, progress=report, **more)
            ok = outcome.is_conserved
    if arguments.json:
        terminal.put_json({"ok": ok, **asdict(outcome)})
    else:
        for part in terminal.folded(outcome.sentence(), sys.stdout):
            terminal.put(part)
        for example in outcome.examples:
            terminal.put(f"  {example}")
    return 0 if ok else 1


def _prefixes(arguments: argparse.Namespace) -> list[str]:
    """The datasets that are named, each once."""
    from tokpack.dataset import prefix_of

    names = [name for pattern in matching_datasets(arguments.inputs) for name in _datasets(pattern)]
    return list(dict.fromkeys(prefix_of(name) for name in names))


def _datasets(name: str) -> list[str]:
    """A prefix, or those of a folder, however deep in it."""
    from tokpack.dataset import MMapIndexedDataset

    if is_url(name) or not os.path.isdir(name) or os.path.exists(name + ".bin"):
        return [name]
    visible = (path for path in sorted(Path(name).rglob("*")) if not path.name.startswith("."))
    files = [path for path in visible if path.is_file()]
    datasets = [
        str(path)
        for path in files
        if path.suffix in (".bin", ".idx")
        or (path.suffix == ".json" and MMapIndexedDataset.exists(path.with_suffix("")))
    ]
    if not datasets:
        raise InputError(not_a_dataset(name))
    return datasets


def _verify(prefixes: Sequence[str], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The result for each dataset; all are checked, even if some are broken."""
    from tokpack.dataset.verify import verify

    options = {name: getattr(arguments, name) for name in ("quick", "vocab_size", "eod")}
    for prefix in prefixes:
        try:
            with terminal.Reporter() as report:
                tasks = shards.tasks_of(arguments, prefix, report)
                result = verify(prefix, **options, progress=report, tasks=tasks)
        except (FormatError, InputError) as error:
            yield {
                "prefix": prefix,
                "ok": False,
                "fault": terminal.fault(error, flag_names(*PAGE.groups)),
            }
        else:
            yield {"ok": True, "fault": None, **asdict(result)}


def _line(result: dict[str, Any]) -> str:
    size, seconds = result["bytes_read"], result["seconds"]
    took = f"{seconds * 1000:.0f} ms" if seconds < 1 else time_text(seconds)
    pace = f", {size / seconds / 1e9:.1f} GB/s" if size >= RATE_BYTES else ""
    line = (
        f"{result['prefix']}: ok, {counted(result['documents'], 'document')}, "
        f"{counted(result['tokens'], 'token')}, "
        f"{bytes_text(size)} in {took}{pace}"
    )
    reasons: dict[str, list[str]] = {}
    for entry in result["unchecked"]:
        what, _, reason = entry.rstrip(")").partition(" (")
        reasons.setdefault(reason, []).append(what)
    missed = [f"{', '.join(whats)} ({reason})" for reason, whats in reasons.items()]
    return line + (f"; not checked: {', '.join(missed)}" if missed else "")
