"""``tokpack tokenizer``: what a tokenizer is, whether it is right and fast here, its tokens."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from tokpack.cli import terminal
from tokpack.cli.inputs import FILES, INPUT_FORMAT, SPECIAL_TOKENS_COUNT, tokenizer_given
from tokpack.cli.parser import Group, Page, flags
from tokpack.display import shown
from tokpack.errors import UsageError
from tokpack.quantities import bytes_text, counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tokpack.look import TokenizerFacts
    from tokpack.look.tokenizers import Comparison, Texts, TokenizerTrial
    from tokpack.tokenizers import Tokenizer

_MOST_SPECIAL = 8

PAGE = Page(
    "tokenizer",
    "Show what a tokenizer is, check its ids against the reference library, and measure its speed.",
    (
        Group(
            "what to do",
            (
                *flags(
                    """
                    --text TEXT             only show the tokens of this text
                    --check                 also compare with AutoTokenizer of transformers
                    --on FILE...            texts to try it on, as encode takes them (Python's
                                            library)
                    --compare NAME|PATH...  compare bytes per token with other tokenizers, for each
                                            file
                    --by KEY                with --compare: for each value of a JSON key
                    --key, --json-keys KEY  JSON key or column (text)
                    """,
                    on={"default": []},
                    compare={"default": []},
                    key={"default": "text"},
                ),
                INPUT_FORMAT,
                *flags(
                    """
                    --sample SIZE  text to read from each file (1MB)
                    --json         print everything as JSON on stdout
                    """,
                    sample={"default": 1_000_000},
                ),
            ),
        ),
        Group(
            "tokenizer",
            (
                *FILES,
                *flags("--vocab-size N  ids of a TikTokenizer"),
                SPECIAL_TOKENS_COUNT,
            ),
        ),
    ),
    """\
INPUT is the name or path of one tokenizer, as encode takes it (gpt2).

examples:
  tokpack tokenizer gpt2
  tokpack tokenizer qwen.tiktoken --on wiki.jsonl
  tokpack tokenizer neox --check
  tokpack tokenizer gpt2 --compare neox tokenizer.json --on en.jsonl de.jsonl code.jsonl
  tokpack tokenizer gpt2 --text "Byte pair encoding"
""",
)


def run(arguments: argparse.Namespace) -> int:
    """Run ``tokpack tokenizer``."""
    _check(arguments)
    from tokpack.look import tokenizer_facts
    from tokpack.look.tokenizers import compare_with_transformers, mix, sample_texts, try_out
    from tokpack.tokenizers import load_tokenizer

    arguments.tokenizer = arguments.inputs[0] if arguments.inputs else None
    sizes = {name: getattr(arguments, name) for name in ("vocab_size", "special_tokens_count")}
    tokenizer = load_tokenizer(**tokenizer_given(arguments), **sizes)
    if arguments.text is not None:
        _show_text(tokenizer, arguments)
    elif arguments.compare:
        _compare(tokenizer, arguments)
    else:
        most = arguments.sample
        texts = mix(_texts(arguments), most) if arguments.on else sample_texts(most)
        trial = try_out(tokenizer, texts)
        comparison = compare_with_transformers(tokenizer, texts) if arguments.check else None
        _describe(tokenizer_facts(tokenizer), trial, comparison, arguments)
        return 1 if trial.difference or (comparison and comparison.difference) else 0
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if len(arguments.inputs) > 1:
        raise UsageError(
            f"name one tokenizer, not {len(arguments.inputs)}; --compare takes others, --on texts"
        )
    if arguments.by and not arguments.compare:
        raise UsageError("--by belongs to --compare")
    if arguments.compare and not arguments.on:
        raise UsageError("--compare needs texts: add --on FILE...")
    if arguments.text is not None and (arguments.compare or arguments.on or arguments.check):
        raise UsageError("--text cannot be combined with --on, --compare or --check")
    if arguments.check and arguments.compare:
        raise UsageError("--check tests one tokenizer: leave out --compare")
    if arguments.sample < 1:
        raise UsageError("--sample is 0: nothing would be read")


def _texts(arguments: argparse.Namespace) -> list[Texts]:
    from tokpack.look.tokenizers import read_texts

    return read_texts(
        arguments.on,
        key=arguments.key,
        input_format=arguments.input_format or "auto",
        by=arguments.by,
        most=arguments.sample,
    )


def _describe(
    facts: TokenizerFacts,
    trial: TokenizerTrial,
    comparison: Comparison | None,
    arguments: argparse.Namespace,
) -> None:
    from tokpack.cli.figures import bold, table

    if arguments.json:
        values = {**asdict(facts), "trial": trial}
        if comparison is not None:
            values["transformers"] = comparison
        terminal.put_json(values, indent=2)
        return
    ids = [f"{facts.vocab_size:,} ids"]
    ids += [] if facts.merges is None else [f"{facts.merges:,} merges"]
    ids += [f"{facts.unused:,} unused"] if facts.unused else []
    steps = {"pattern": facts.pattern, "normalizer": facts.normalizer}
    rows = [
        ["files", ", ".join(facts.files) or "none"],
        ["kind", facts.kind],
        *([] if facts.model in facts.kind else [["model", facts.model]]),
        ["vocabulary", ", ".join(ids)],
        ["special", _special(facts)],
        ["in documents", f"special tokens are {_IN_TEXT[facts.special_in_text]}"],
        ["EOD", _token(facts.eod)],
        ["BOS", _token(facts.bos)],
        *([key, value or "none"] for key, value in steps.items() if value is not None),
        ["fast path", "yes" if facts.native else f"no: {facts.why_not_native}"],
        ["ids", _ids(facts, trial)],
        ["speed", f"{trial.cold:,.1f} MB/s cold, {trial.warm:,.1f} warm, on one core here"],
        ["bytes per token", f"{trial.text_bytes / max(trial.tokens, 1):.2f}"],
        ["sha256", facts.sha256],
    ]
    if facts.whole_words:
        rows.insert(3, ["words", "a word that is a token is taken whole, without merging"])
    if comparison is not None:
        same = f"the same on {counted(comparison.texts, 'text')}"
        rows.append([f"transformers {comparison.version}", comparison.difference or same])
    rows += [["note", note] for note in facts.notes]
    terminal.put(bold(shown(facts.name)))
    table(rows, left=(0, 1))


_IN_TEXT = {"text": "encoded as text", "encode": "encoded as tokens"}


def _special(facts: TokenizerFacts) -> str:
    items = [f"{text} {number}" for text, number in facts.special.items()]
    more = len(items) - _MOST_SPECIAL
    return ", ".join(items[:_MOST_SPECIAL]) + (f" and {more:,} more" if more > 0 else "") or "none"


def _token(token: tuple[str, int] | None) -> str:
    return "none" if token is None else f"{token[0]} {token[1]}"


def _ids(facts: TokenizerFacts, trial: TokenizerTrial) -> str:
    sample = bytes_text(trial.text_bytes)
    if trial.difference is None:
        return "not compared" if facts.native else "made by the reference library"
    library = "SentencePiece" if facts.kind == "SentencePiece" else "Hugging Face"
    return trial.difference or f"the same as the {library} library's, on {sample} of text"


def _show_text(tokenizer: Tokenizer, arguments: argparse.Namespace) -> None:
    from tokpack.cli.figures import bold
    from tokpack.cli.shown import print_tokens
    from tokpack.dataset.spelling import Spelling
    from tokpack.look.tokenizers import Texts

    texts = Texts.of("", [arguments.text.encode("utf-8", "replace")])
    encoder = tokenizer.encoder(dtype="int32", append_eod=False)
    ids = encoder.encode(texts.data, texts.spans).ids.tolist()
    spelling = Spelling(tokenizer)
    if arguments.json:
        pieces = [{"ids": list(one.ids), "text": one.text} for one in spelling.whole(ids)]
        terminal.put_json({"tokenizer": tokenizer.name, "ids": ids, "tokens": pieces})
        return
    tokens = counted(len(ids), "token")
    terminal.put(f"{bold(shown(tokenizer.name))}: {tokens}, {texts.size:,} bytes")
    print_tokens(ids, spelling)


def _compare(tokenizer: Tokenizer, arguments: argparse.Namespace) -> None:
    from tokpack.cli.figures import bold, name, table, width
    from tokpack.look.tokenizers import tokens_of
    from tokpack.tokenizers import load_tokenizer

    tokenizers = [tokenizer, *map(load_tokenizer, arguments.compare)]
    groups = _texts(arguments)
    counts = [[tokens_of(one, group) for one in tokenizers] for group in groups]
    if arguments.json:
        facts = [
            {
                "name": group.name,
                "documents": len(group.spans),
                "text_bytes": group.size,
                "tokens": row,
            }
            for group, row in zip(groups, counts, strict=True)
        ]
        names = [one.name for one in tokenizers]
        terminal.put_json({"tokenizers": names, "groups": facts}, indent=2)
        return
    sizes = [group.size for group in groups]
    titles = _short([group.name for group in groups])
    rows = [
        _row(name(title, 40), text_bytes, row)
        for title, text_bytes, row in zip(titles, sizes, counts, strict=True)
    ]
    if len(groups) > 1:
        rows.append(_row("all", sum(sizes), [sum(column) for column in zip(*counts, strict=True)]))
    columns = max(12, (width() - 56) // len(tokenizers) - 2)
    names = [name(one, columns) for one in _short([one.name for one in tokenizers])]
    terminal.put(bold("bytes per token") + ", and how many tokens each needs relative to the first")
    table([["", "text", *names], *rows], left=(0,))


def _short(paths: Sequence[str]) -> list[str]:
    """Names of files without their folders, where they stay different."""
    names = [os.path.basename(path) or path for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def _row(title: str, text_bytes: int, counts: Sequence[int]) -> list[str]:
    cells = [f"{text_bytes / max(count, 1):.2f}" for count in counts]
    shares = [f"{count / max(counts[0], 1):.0%}" for count in counts[1:]]
    more = [f"{cell} ({share})" for cell, share in zip(cells[1:], shares, strict=True)]
    return [title, bytes_text(text_bytes), cells[0], *more]
