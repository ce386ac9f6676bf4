"""Families of tokenizers that people use, each cold on text in many languages, on one core.

    python benchmarks/families.py [--families NAME ...] [--runs 3]
    python benchmarks/families.py --page    # write the table of docs/tokenizers.md anew

The families are those of tests/support/families.jsonl: pipelines as published, or as transformers
makes them. A family whose own vocabulary is not among the data is made on another one of its kind:
a real one, or one that is learned from the corpora in some seconds. What a vocabulary of another
size would change is in no row.

The text is half English and half the languages of the corpus ``multi``, in equal shares as far as
these go, in shuffled order. Each measurement is a fresh process that encodes each document once, as
in encode.py; the Hugging Face library gets the first ``--library-bytes``, of which ids are
compared. MB of UTF-8 text for each second of processor time, after construction.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import common
import encode
import numpy as np

from tokpack.tokenizers import load_tokenizer
from tokpack.tokenizers.patterns import is_name, recognize

sys.path.insert(0, str(common.ROOT / "tests"))
from support.families import Family, families, trained_model
from support.sentencepiece_tools import hugging_face

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from pathlib import Path

TEXT = "languages"
SLOW = 20  # MB/s: what is below is named, with its reason
# Vocabularies that are learned: how many tokens, of how many MB of the text.
LEARNED = {
    "unigram": (16_000, 3),
    "byte unigram": (16_000, 3),
    "wordpiece": (20_000, 6),
    "characters": (20_000, 6),
    "end of word": (20_000, 6),
}
PAGE = common.ROOT / "docs" / "tokenizers.md"
BEGIN, END = "<!-- families: made by benchmarks/families.py --page -->\n", "<!-- end -->\n"
# Why a family is slow, for the page.
WHY = {
    "K-EXAONE": "its words are phrases, most of them new, and most of the time is merging",
}


def write_text(data: common.Data, work: Path, size: int) -> list[str]:
    """Write the documents, as encode.py has its corpora; returns them."""
    others = defaultdict(list)
    for line in data.lines("multi").split(b"\n")[:-1]:
        record = json.loads(line)
        others[record["meta"]["lang"]].append(record["text"])
    chosen = _first(data.texts("english"), size // 2)
    small_first = sorted(others.values(), key=lambda texts: sum(map(len, texts)))
    for number, texts in enumerate(small_first):
        rest = size - sum(len(text.encode()) for text in chosen)
        chosen += _first(texts, rest // (len(small_first) - number))
    random.Random(1).shuffle(chosen)
    documents = [text.encode() for text in chosen]
    (work / f"{TEXT}.txt").write_bytes(b"".join(documents))
    np.cumsum([0, *map(len, documents)]).astype(np.int64).tofile(work / f"{TEXT}.offsets")
    return chosen


def _first(texts: Iterable[str], size: int) -> list[str]:
    """The first texts, of ``size`` bytes together; the last one is cut."""
    taken = []
    for text in texts:
        part = text.encode()[:size].decode(errors="ignore")
        size -= len(part.encode())
        if part:
            taken.append(part)
    return taken


class Vocabularies:
    """The models of known vocabularies, each made once."""

    def __init__(self, data: common.Data, work: Path, texts: list[str]) -> None:
        self._data, self._work, self._texts = data, work, texts
        self._models: dict[str, Any] = {}

    def model(self, name: str) -> Any:
        """The ``model`` of a tokenizer.json."""
        if name not in self._models:
            self._models[name] = self._make(name)
        return self._models[name]

    def _make(self, name: str) -> Any:
        if name in encode.TOKENIZERS:
            encode.write_tokenizer(self._data, self._work, name)
            path = self._work / "tokenizers" / name / "tokenizer.json"
            return json.loads(path.read_bytes())["model"]
        if name == "mistral":
            raw = self._data.find("mistral-v1.model").read_bytes()
            return json.loads(str(hugging_face(raw).to_str()))["model"]
        print(f"learning a vocabulary: {name}", file=sys.stderr)
        size, megabytes = LEARNED[name]
        return trained_model(name, _first(self._texts, megabytes * 1_000_000), size)


def measure(
    family: Family, vocabularies: Vocabularies, work: Path, programs: Sequence[Any], runs: int
) -> common.Row:
    """The row of a family."""
    folder = work / "tokenizers" / "family"
    folder.mkdir(parents=True, exist_ok=True)
    definition = family.definition(vocabularies.model(family.vocabulary))
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    own, library = encode.compare(programs, work, "family", TEXT, runs)
    return {
        "benchmark": "families",
        "family": family.name,
        "vocabulary": family.vocabulary,
        "not_native": load_tokenizer(folder).why_not_native,
        "runs": runs,
        "bytes": own["bytes"],
        "equal_ids": library["equal_ids"],
        "construction": own["construction"],
        "first": own["first"],
        "library": library["first"],
    }


def show(rows: Iterable[common.Row]) -> None:
    """Print a line for each family."""
    lines = [
        [
            row["family"],
            row["vocabulary"],
            row["first"]["median"],
            row["library"]["median"],
            row["first"]["median"] / row["library"]["median"],
            "equal" if row["equal_ids"] else "DIFFER",
            row["not_native"],
        ]
        for row in rows
    ]
    common.print_table(
        ["family", "vocabulary", "MB/s", "library", "times", "ids", "not native"], lines
    )


def newest() -> dict[str, common.Row]:
    """The last row of each family in the results."""
    text = (common.RESULTS / "families.jsonl").read_text(encoding="utf-8")
    return {row["family"]: row for row in map(json.loads, text.splitlines())}


def page(text: str) -> str:
    """docs/tokenizers.md, ``text``, with the table as the results have it."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table(newest())}{END}{rest.partition(END)[2]}"


def table(rows: dict[str, common.Row]) -> str:
    """Families whose steps are of the same kinds in one line, with the least and the most speed."""
    groups = defaultdict(list)
    for family in families().values():
        groups[family.kind, steps_of(family)].append(family.name)
    lines = ["| families | model | normalizer; pre_tokenizer | MB/s | the library |"]
    lines.append("|---|---|---|---|---|")
    for (kind, steps), names in sorted(groups.items(), key=lambda group: group[0][0]):
        speeds = (
            _range(rows[name][key]["median"] for name in names) for key in ("first", "library")
        )
        lines.append(" | ".join(["| " + ", ".join(names), kind, steps, *speeds]) + " |")
    slow = [row for row in rows.values() if row["first"]["median"] < SLOW]
    if slow:
        lines += ["", f"Below {SLOW} MB/s:", ""]
    for row in slow:
        lines.append(f"- {row['family']}, {row['first']['median']:.1f} MB/s: {reason(row)}")
    return "\n".join([*lines, ""])


def _range(speeds: Iterable[float]) -> str:
    least, *_, most = sorted([*speeds] * 2)
    words = [f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}" for speed in (least, most)]
    return " to ".join(dict.fromkeys(words))


def reason(row: common.Row) -> str:
    """Why a family is slow."""
    if row["not_native"]:
        return f"left to the library, as {row['not_native']}"
    return WHY[row["family"]]


def steps_of(family: Family) -> str:
    """Its normalizers and pre_tokenizers: their types, or the name of the pattern in the core."""
    normalizers = _types(family.normalizer, "normalizers")
    cuts = _types(family.pre_tokenizer, "pretokenizers")
    if cuts[-1:] == ["ByteLevel"]:
        pattern = recognize(family.pre_tokenizer)
        cuts = [f"`{pattern}`"] if is_name(pattern) else cuts
    return f"{', '.join(normalizers) or 'none'}; {', '.join(cuts) or 'none'}"


def _types(node: Any, key: str) -> list[str]:
    """The types of the steps; several in a row of one type with their number."""
    nodes = [node] if node else []
    while any(key in step for step in nodes):
        nodes = [inner for step in nodes for inner in step.get(key, [step])]
    counted = [(kind, len([*same])) for kind, same in groupby(step["type"] for step in nodes)]
    return [kind if number == 1 else f"{number} {kind}" for kind, number in counted]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__)
    parser.add_argument("--families", nargs="*", default=[*families()], metavar="NAME")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=6_000_000, help="of text")
    parser.add_argument("--library-bytes", type=int, default=600_000, help="of it for the library")
    parser.add_argument("--page", action="store_true", help="write the table of docs/tokenizers.md")
    return parser.parse_args()


def main() -> None:
    """Measure the families in turns with the library, and append rows; or write the page."""
    args = parse()
    if args.page:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    data = common.find_data(args.data)
    programs = [
        encode.Program(library, library, sys.executable, limit)
        for library, limit in (("tokpack", args.bytes), ("tokenizers", args.library_bytes))
    ]
    rows = []
    with common.work_folder(args.work) as work:
        vocabularies = Vocabularies(data, work, write_text(data, work, args.bytes))
        for name in args.families:
            print(name, file=sys.stderr)
            rows.append(measure(families()[name], vocabularies, work, programs, args.runs))
    show(rows)
    if not args.no_save:
        common.append_rows("families", rows, common.versions("tokenizers"))
    if not all(row["equal_ids"] for row in rows):
        sys.exit("ids differ")


if __name__ == "__main__":
    main()
