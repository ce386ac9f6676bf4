"""``tokpack tokenizer train``: documents -> a vocabulary of whole words, or a byte-level BPE."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.inputs import INPUT_FORMAT
from tokpack.cli.parser import Group, Page, flags
from tokpack.errors import OutputError, RecordError, UsageError
from tokpack.quantities import bytes_text, time_text
from tokpack.storage.disk import make_parent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tokpack.sources import Source

DEFAULT_BPE_SIZE = 50257

PAGE = Page(
    "tokenizer train",
    "Make a tokenizer from documents: a byte-level BPE, or a vocabulary of whole words.",
    (
        Group(
            "flags",
            (
                *flags(
                    """
                    -o, --output FILE       tokenizer.json or vocab.json to write
                    --type bpe|whitespace   what to make (whitespace for a file named vocab.json,
                                            else bpe)
                    --vocab-size, --size N  most tokens, special ones included (bpe: 50257;
                                            whitespace: all words)
                    --pattern NAME|REGEX    how a bpe cuts text into words: gpt2, cl100k, o200k,
                                            llama3, qwen2, deepseek, tekken, ..., or an expression
                                            (gpt2)
                    --special-tokens TOKENS  special tokens of a bpe, separated by commas; may be
                                            repeated (<|endoftext|>)
                    --min-count, --min-frequency N  merge pairs, or take words, that occur N times
                                            or more (bpe: 2; whitespace: 1)
                    --key, --json-keys KEY  JSON key or column (text)
                    """,
                    special_tokens={"action": "append"},
                    key={"default": "text"},
                ),
                INPUT_FORMAT,
                *flags(
                    """
                    --limit N               learn from the first N records
                    --workers, --threads N  threads for a bpe, which do not change the result (all
                                            cores)
                    --overwrite             replace what is there
                    """,
                    workers={"default": 0},
                ),
            ),
        ),
    ),
    """\
examples:
  tokpack tokenizer train sample.jsonl.zst -o tokenizer.json --vocab-size 32000
  tokpack encode the-pile/*.jsonl.zst --tokenizer tokenizer.json
  tokpack tokenizer train sample.jsonl.zst -o my.json --pattern o200k \\
      --special-tokens "<|endoftext|>,<|user|>,<|assistant|>"

  tokpack tokenizer train train.txt -o vocab.json
  tokpack encode train.txt --tokenizer-type Whitespace --vocab-file vocab.json
""",
)


@dataclass
class Corpus:
    """The texts under ``key`` of some inputs, of ``limit`` documents, and how many were read."""

    sources: Sequence[Source]
    key: str
    limit: int | None
    report: terminal.Reporter
    documents: int = 0
    text_bytes: int = 0

    def __iter__(self) -> Iterator[str]:
        from tokpack.progress import ProgressStage

        stage = ProgressStage(self.report, "read", sum(source.size for source in self.sources))
        for source in self.sources:
            for texts, bytes_read in _batches(source, self.key):
                for text in texts:
                    if self.documents == self.limit:
                        return
                    self.documents += 1
                    self.text_bytes += len(text)
                    yield text.decode()
                stage.add(bytes_read)
        ProgressStage(self.report, "learn", 0).add(0)  # nobody tells how far that is


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack tokenizer train``."""
    is_bpe = _is_bpe(arguments)
    from tokpack.sources import discover
    from tokpack.storage.disk import DATA, check_outputs, replace_file
    from tokpack.tokenizers import EOD_NAMES

    output: str = arguments.output
    sources = discover(arguments.inputs, input_format=arguments.input_format or "auto")
    lists = [text[1:] for text in arguments.inputs if text.startswith("@")]
    inputs = [*(source.path for source in sources), *lists]
    _make_folder(output)
    check_outputs([(output, DATA)], inputs, overwrite=arguments.overwrite)
    with terminal.Reporter() as report:
        corpus = Corpus(sources, arguments.key, arguments.limit, report)
        text, count = _learned(corpus, arguments, is_bpe)
    check_outputs([(output, DATA)], inputs, overwrite=arguments.overwrite)
    replace_file(output, [text.encode()])
    terminal.say(
        f"{output}: {count:,} tokens from {corpus.documents:,} documents, "
        f"{bytes_text(corpus.text_bytes)} of text in {time_text(report.seconds)}"
    )
    flags = f"--tokenizer-type Whitespace --vocab-file {output}"
    if is_bpe:
        special = _special_tokens(arguments)
        eod = "" if set(EOD_NAMES) & set(special) else f" --eod-token {shlex.quote(special[0])}"
        flags = f"--tokenizer {output}{eod}"
    if arguments.input_format:
        flags += f" --input-format {arguments.input_format}"
    terminal.say(f"next: tokpack encode {' '.join(arguments.inputs)} {flags}")
    terminal.print_paths(output)
    return 0


def _is_bpe(arguments: argparse.Namespace) -> bool:
    """Whether a BPE is to be made. UsageError for missing or contradictory flags."""
    if not arguments.inputs:
        raise UsageError("no INPUT: name a file, a folder, a glob, @list.txt, or - for stdin")
    if not arguments.output:
        raise UsageError("no output: add -o tokenizer.json, or -o vocab.json")
    words = os.path.basename(arguments.output) == "vocab.json"
    kind = arguments.type or ("whitespace" if words else "bpe")
    if kind == "whitespace":
        for name in ("pattern", "special_tokens", "workers"):
            if getattr(arguments, name):
                flag_name = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag_name} belongs to a BPE, not to --type {kind}")
    if arguments.pattern:
        from tokpack.tokenizers import pre_tokenizer_of

        pre_tokenizer_of(arguments.pattern)  # raises for a wrong one, before all is read
    return kind == "bpe"


def _special_tokens(arguments: argparse.Namespace) -> list[str]:
    from tokpack.tokenizers import EOD

    texts = arguments.special_tokens or [EOD]
    return [token for text in texts for token in map(str.strip, text.split(",")) if token]


def _learned(corpus: Corpus, arguments: argparse.Namespace, is_bpe: bool) -> tuple[str, int]:
    """A tokenizer.json, or a vocab.json of whole words; and how many tokens it has."""
    from tokpack.tokenizers import train_bpe, train_whitespace_vocab

    least = arguments.min_count or (2 if is_bpe else 1)
    if not is_bpe:
        words = train_whitespace_vocab(corpus, vocab_size=arguments.vocab_size, min_count=least)
        return json.dumps(words, ensure_ascii=False, indent=0) + "\n", len(words)
    text = train_bpe(
        corpus,
        vocab_size=arguments.vocab_size or DEFAULT_BPE_SIZE,
        min_count=least,
        special_tokens=_special_tokens(arguments),
        threads=arguments.workers,
        pattern=arguments.pattern or "gpt2",
    )
    return text, len(json.loads(text)["model"]["vocab"])


def _make_folder(path: str) -> None:
    # Before the training, which may take a while.
    make_parent(path)
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write {path}: it is a folder, or in one that is read-only")


def _batches(source: Source, key: str) -> Iterator[tuple[list[bytes], int]]:
    """Texts of one source, a batch at a time, and the stored bytes read for each."""
    from tokpack.sources import line_base, make_parts, read

    for part in make_parts([source], ways=1):
        with closing(read(source, part, [key])) as batches:
            for batch in batches:
                if batch.bad:
                    bad = batch.bad[0]
                    line = line_base(source, part) + bad.line + 1
                    advice = f"{bad.keys_there}: name one with --key" if bad.keys_there else ""
                    raise RecordError(source.name, line, bad.reason, advice)
                documents = batch.documents[key]
                yield [documents.text(i) for i in range(len(documents))], batch.bytes_read
