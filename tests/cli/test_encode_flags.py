"""What the command line of `tokpack encode` means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tokpack.cli.commands.encode import PAGE, resolve
from tokpack.cli.parser import parse
from tokpack.errors import UsageError


def options_of(command: str) -> tuple[Any, list[str]]:
    """What the library is asked to do for a command line, and the notes for the user."""
    return resolve(parse(PAGE, command.split()))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "--input my.jsonl --output-prefix my-gpt2 --vocab gpt2-vocab.json --dataset-impl mmap "
            "--tokenizer-type GPT2BPETokenizer --merge-file gpt2-merges.txt --append-eod "
            "--workers 8",
            {
                "inputs": ("my.jsonl",),
                "output_names": {"text": "my-gpt2_text_document"},
                "vocab_file": "gpt2-vocab.json",
                "merge_file": "gpt2-merges.txt",
                "tokenizer_type": "GPT2BPETokenizer",
                "append_eod": True,
            },
        ),
        (
            "--input a.txt --tokenizer-type Whitespace --vocab-file v.json --output-prefix nist",
            {
                "output_names": {"text": "nist_text_sentence"},
                "append_eod": True,
                "input_format": "text",
            },
        ),
        (
            "--input a b --json_keys text title --output_prefix=p --split-sentences --lang german",
            {
                "inputs": ("a", "b"),
                "keys": ("text", "title"),
                "output_names": {"text": "p_text_sentence", "title": "p_title_sentence"},
                "append_eod": False,
                "lang": "german",
            },
        ),
        (
            "a -o o --keep url id --key text --keep=score --json-keys title --limit 5 --limit 6",
            {"keep": ("url", "id", "score"), "keys": ("text", "title"), "limit": 6},
        ),
        (
            "a.jsonl -o out --tokenizer neox --on-error skip:7 b.jsonl --max-document-bytes 2MB",
            {
                "inputs": ("a.jsonl", "b.jsonl"),
                "output": "out",
                "output_names": {"text": "out"},
                "tokenizer": "neox",
                "append_eod": True,
                "on_error": "skip",
                "max_rejects": 7,
                "max_document_bytes": 2_000_000,
            },
        ),
        ("d/a.jsonl.zst --no-append-eod", {"append_eod": False, "output": "a", "workers": 0}),
        ("a --tokenizer-name-or-path org/name", {"tokenizer": "org/name"}),
        ("a --jsonl-keys b", {"keys": ("b",)}),
        ("a --limit 1.5k -o x.bin", {"limit": 1500, "output": "x"}),
        ("a --limit 2M -o d/x.idx", {"limit": 2_000_000, "output": "d/x"}),
        ("a --limit 1.5e10", {"limit": 15_000_000_000}),
        ("a --limit 1B -o x.y", {"limit": 10**9, "output": "x.y"}),
        ("a --json-keys b -o x -- --c -d", {"inputs": ("a", "--c", "-d"), "keys": ("b",)}),
        ("a --json-keys text,title meta.text,", {"keys": ("text", "title", "meta.text")}),
    ],
)
def test_flags_mean(command: str, expected: dict[str, Any]) -> None:
    options, _ = options_of(command)
    assert {name: getattr(options, name) for name in expected} == expected


def test_workers_change_nothing_else() -> None:
    options, notes = options_of("a")
    assert options_of("a --workers 8") == (replace(options, workers=8), notes)


def test_flags_without_effect_get_a_note_each() -> None:
    _, notes = options_of(
        "a --partitions 4 --make-vocab-size-divisible-by 128 --tensor-model-parallel-size 1 "
        "--keep-sequential-samples --vocab-size 50257 --num-docs 10 --workers-to-check 1 2"
    )
    assert [note.split()[0] for note in notes] == [
        "--partitions",
        "--make-vocab-size-divisible-by",
        "--tensor-model-parallel-size",
        "--keep-sequential-samples",
        "--vocab-size",
        "--num-docs",
        "--workers-to-check",
    ]


@pytest.mark.parametrize(
    ("flag", "here"),
    [
        ("--only-last", "--loss last"),
        ("--no-mask", "--loss all"),
        ("--generation-role=bot", "--role-map ROLE=assistant"),
        ("--tokenizer-path my-model", "--tokenizer DIR"),
    ],
)
def test_flags_of_the_script_for_conversations_say_what_is_given_here(flag: str, here: str) -> None:
    with pytest.raises(UsageError, match=f"with --chat give {here}"):
        options_of(f"a --chat {flag}")
