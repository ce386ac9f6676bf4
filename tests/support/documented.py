"""Commands of the documentation and of help pages, and a small world in which they run."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import shutil
import tarfile
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
import zstandard

from support.places import GOLDEN, ROOT
from support.rank_files import BYTES, WORDS, save_lines
from support.report_tools import run
from support.table_tools import add_table
from tokpack.cli.main import COMMANDS, module_of
from tokpack.dataset import MMapIndexedDataset
from tokpack.dataset.table import TABLE_SUFFIX
from tokpack.tokenizers import train_bpe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

LETTERS = "etaoinshrdlu"
_INPUTS = """
    wiki.jsonl wiki.jsonl.gz web.jsonl web/1.jsonl.zst the-pile/0.jsonl.zst the-pile/1.jsonl.zst
    part1.jsonl part2.jsonl.zst corpus/a.jsonl.gz corpus/b.jsonl.gz a.jsonl b.jsonl my.jsonl
    sample.jsonl.zst evals.jsonl en.jsonl de.jsonl code.jsonl books.jsonl
"""
_START = re.compile(r"(?:\$ |zcat .*\| |[a-z]+=\$\()?tokpack [a-z]")
# Pages whose steps belong together: these are run one after the other, in one folder.
WHOLE = (
    "README.md",
    "docs/quickstart.md",
    "docs/select.md",
    "docs/chat.md",
    "docs/train.md",
    "docs/cluster.md",
    "docs/guides/scored-web.md",
)
_SYNOPSIS = re.compile(r"\.\.\.|\[flags\]|\b(PREFIX|INPUT|COMMAND)\b")


def pages() -> dict[str, str]:
    """The text of README and of every page in docs, by the name below the repository."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def documented() -> Iterator[tuple[str, str]]:
    """Where each command stands, and the command, without comments and what only shows a form."""
    texts = {where: text for where, text in pages().items() if where not in WHOLE}
    for name in COMMANDS:
        module = module_of(name)
        page = getattr(module, "PAGE", None)
        texts[f"tokpack {name} --help"] = page.epilog if page else module.EPILOG
    seen = set()
    for where, text in sorted(texts.items()):
        for line in re.sub(r" *\\\n *", " ", text).splitlines():
            command = re.split(r" {2,}|\s#", line.strip())[0].removeprefix("$ ")
            own = line.startswith("  ") and _START.match(command) and command not in seen
            if own and not _SYNOPSIS.search(command):
                seen.add(command)
                yield where, command


def steps(text: str) -> Iterator[tuple[str, str]]:
    """The steps of a page: ("python", code) and ("command", line)."""
    text = re.sub(r" *\\\n *", " ", text)
    for block, line in re.findall(r"(?ms)^```python\n(.*?)^```|^    (tokpack [^\n]*)", text):
        yield ("python", block) if block else ("command", line)


def _texts(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    words = ["".join(source.choices(LETTERS, k=source.randrange(2, 8))) for _ in range(300)]
    return [
        " ".join(source.choices(words, k=source.randrange(10, 60))) + ". " for _ in range(count)
    ]


def _save(path: Path, records: Sequence[Mapping[str, str | float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = "".join(json.dumps(record) + "\n" for record in records).encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    path.write_bytes(zstandard.compress(raw) if path.suffix == ".zst" else raw)


def _record(text: str) -> dict[str, str | float]:
    """What the pages keep of a text."""
    return {"text": text, "id": text[:20], "url": text[:9], "score": len(text) / 1e3, "lang": "en"}


def make_inputs(folder: Path) -> None:
    """Texts and tokenizers under the names that the documentation has for them."""
    for seed, name in enumerate(_INPUTS.split()):
        many = 2500 if name in ("wiki.jsonl", "my.jsonl") else 60
        _save(folder / name, [_record(text) for text in _texts(many, seed)])
    papers = [{"title": text[:20], "abstract": text, "text": text} for text in _texts(40, 90)]
    _save(folder / "papers.jsonl", papers)
    _save(folder / "dump" / "x.jsonl", papers)
    _save(folder / "all.jsonl", [{"text": t, "lang": t[0]} for t in _texts(40, 91)])
    (folder / "files.txt").write_text("a.jsonl\nb.jsonl\n")
    for name in ("chat.log", "train.txt"):
        (folder / name).write_text("\n".join(_texts(50, 92)))
    for name, key in (("chats.jsonl", "messages"), ("conversations.jsonl", "conversation")):
        roles = ("user", "assistant")
        chats = [[{"role": one, "content": text} for one in roles] for text in _texts(40, 96)]
        _save(folder / name, [{key: chat, "module": "os"} for chat in chats])
    preference = {"prompt": "eta", "chosen": "oin", "rejected": "shr"}
    preference |= {"chosen_score": 2, "rejected_score": 1, "ref_chosen_logps": -1.5}
    preference |= {"ref_rejected_logps": -2.5}
    _save(folder / "preferences.jsonl", [preference] * 9)
    _make_files(folder)
    _make_tokenizers(folder)


def _make_files(folder: Path) -> None:
    """Files that are documents, in folders and in an archive, a table, and a crawl's texts."""
    for name in ("src/a.py", "books/b/c.txt"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("\n\n".join(_texts(5, 94)))
    with tarfile.open(folder / "repository.tar.gz", "w:gz") as archive:
        archive.add(folder / "src", "repository")
    with gzip.open(folder / "rows.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["title", "body"], *([text[:9], text] for text in _texts(9, 95))])
    (folder / "crawl").mkdir()
    with gzip.open(folder / "crawl" / "00000.warc.wet.gz", "wb") as wet:
        for number, text in enumerate(_texts(9, 97)):
            head = "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
            head += "WARC-Identified-Content-Language: eng\r\n"
            head += f"WARC-Target-URI: https://a/{number}\r\nContent-Length: {len(text)}\r\n"
            wet.write(f"{head}\r\n{text}\r\n\r\n".encode())


def _make_tokenizers(folder: Path) -> None:
    special = ["<unk>", "<|endoftext|>", "<|begin_of_text|>"]
    definition = json.loads(train_bpe(_texts(50, 93), vocab_size=400, special_tokens=special))
    for name in ("", "my/", "llama3/", "my-model/"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "tokenizer.json").write_text(json.dumps(definition))
    template = (
        "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}"
        "{{ '<|endoftext|>' if message.role == 'assistant' }}\n{% endfor %}"
    )
    (folder / "my-model" / "chat_template.jinja").write_text(template)
    config = {"eos_token": "<|endoftext|>"}
    (folder / "my-model" / "tokenizer_config.json").write_text(json.dumps(config))
    merges = "".join(f"{left} {right}\n" for left, right in definition["model"]["merges"])
    for kind in ("", "gpt2-"):
        (folder / f"{kind}vocab.json").write_text(json.dumps(definition["model"]["vocab"]))
        (folder / f"{kind}merges.txt").write_text(f"#version: 0.2\n{merges}")
    save_lines(folder, [*BYTES, *WORDS], "my.tiktoken")
    pieces = ["[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{c}" for c in LETTERS), "."]
    wordpiece = {
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "added_tokens": [
            {"id": i, "content": pieces[i], "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i in range(3)
        ],
    }
    vocab = {piece: i for i, piece in enumerate(pieces)}
    wordpiece["model"] |= {"max_input_chars_per_word": 100, "vocab": vocab}
    (folder / "bert").mkdir()
    (folder / "bert" / "tokenizer.json").write_text(json.dumps({"version": "1.0", **wordpiece}))


def make_datasets(folder: Path, blend: str) -> None:
    """Datasets beside the inputs, which is the current folder; ``blend`` is a blend file."""
    run("encode", "wiki.jsonl", "--trace", "-q")
    run("encode", "wiki.jsonl", "web/1.jsonl.zst", "--trace", "-o", "data", "-q")
    run("encode", "my.jsonl", "--output-prefix", "my-gpt2", "--append-eod", "-q")
    names = "owt code books pile other the-pile news_valid code_valid short long shard_0 shard_1"
    names += " papers law math forum news"
    for seed, name in enumerate([*names.split(), "merged", "shards/x", "data/x"]):
        (folder / name).parent.mkdir(exist_ok=True)
        source = "wiki" if seed % 2 else "my-gpt2_text_document"
        for path in (folder / f"{source}{end}" for end in (".bin", ".idx", ".json", TABLE_SUFFIX)):
            if path.exists():
                shutil.copy(path, folder / f"{name}{path.name.removeprefix(source)}")
    for suffix in (".bin", ".idx", ".json"):
        shutil.copy(folder / f"my-gpt2_text_document{suffix}", folder / f"web{suffix}")
    for suffix in (".bin", ".idx"):  # as another program leaves it
        shutil.copy(folder / f"web{suffix}", folder / f"old_text_document{suffix}")
    count = len(MMapIndexedDataset("web"))
    ids, scores = list(range(count)), [number / count for number in range(count)]
    add_table("web", id=ids, score=scores, lang=["de"] * count)
    quality = pyarrow.table({"id": ids, "quality": [10 * score for score in scores]})
    pyarrow.parquet.write_table(quality, folder / "scores.parquet")
    run("select", "web", "--random", "0.5", "-o", "good", "-q")
    run("select", "web", "--first", "2400", "-o", "unique", "-q")
    run("select", "unique", "--random", "0.9", "-o", "train", "--rest", "valid", "-q")
    (folder / "nanoset").mkdir()
    run("convert", "owt", "nanoset/owt.ds", "-q")
    for suffix in ("", ".index", ".metadata"):
        shutil.copy(folder / f"nanoset/owt.ds{suffix}", folder / f"000_tokens.ds{suffix}")
    shutil.copy(folder / "wiki.bin", folder / "ids.bin")
    column = pyarrow.array([[1, 2, 3], [4]], pyarrow.list_(pyarrow.int32()))
    pyarrow.parquet.write_table(pyarrow.table({"tokens": column}), folder / "tokens.parquet")
    template = ("--chat", "--chat-template", "my-model/chat_template.jinja", "-q")
    run("encode", "chats.jsonl", "-o", "chats", *template)
    run("convert", "chats", "prepared", "--to", "arrow", "-q")
    shutil.copytree(GOLDEN / "streamed" / "mds-blocks-gz", folder / "mds")
    run("convert", "chats", "chats_text", "--to", "neox", "-q")
    (folder / "hand.yaml").write_text(blend)
    (folder / "ids.json").write_text('{"class": "GPT2BPETokenizer"}')
    run("blend", "0.35", "wiki", "0.65", "owt", "-o", "blend.yaml", "-q")


def make_room(command: str, folder: Path) -> None:
    """Take away what a command makes, so that it can be made again."""
    if output := re.search(r"tokpack tokenizer train .* -o (\S+)", command):
        (folder / output[1]).unlink(missing_ok=True)
    elif output := re.search(r"tokpack (?:select|dedup) .*-o (\S+)(?: --rest (\S+))?", command):
        for name in filter(None, output.groups()):
            for suffix in (".json", ".selection"):
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
    elif output := re.search(r"tokpack convert (\S+) (\S+)", command):
        ends = ("", ".index", ".metadata", ".bin", ".idx", ".json", ".docs.parquet", ".selection")
        for suffix in ends:
            (folder / f"{output[2]}{suffix}").unlink(missing_ok=True)
