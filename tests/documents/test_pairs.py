"""Pairs of answers stay pairs: whatever chooses, joins or cuts datasets keeps both, or neither."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chatml_twin import chat_tokenizer
from support.documents import plain
from support.indexed_twin import write_plainly
from support.manifests import manifest_for
from support.near_twin import components, jaccard
from support.tasks import directly

import tokpack
from tokpack import GPTDataset, MMapIndexedDataset
from tokpack.dataset.manifest import TRUST
from tokpack.documents import write_view
from tokpack.errors import UsageError
from tokpack.tokenizers import train_bpe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Pair = tuple[tuple[int, ...], tuple[int, ...]]
WORDS = ("and", "of", "the", "was", "is", "in", "to", "a", "for", "on", "with", "as", "it", "his")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "plain.json").write_text(train_bpe([" ".join(WORDS)] * 9, vocab_size=400))
    return chat_tokenizer(folder / "chat", folder / "plain.json")


def records(count: int, seed: int) -> list[dict[str, Any]]:
    """Some have an answer, or both, of another one, and all of them few questions."""
    rng = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))

    questions, answers = [words(20, 40) for _ in range(5)], [words(1, 12) for _ in range(9)]
    return [
        {
            "prompt": rng.choice(questions),
            "chosen": rng.choice(answers),
            "rejected": f"no {rng.choice(answers)}",
            "score": i % 7,
        }
        for i in range(count)
    ]


def encoded(folder: Path, name: str, tokenizer: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options: dict[str, Any] = {"chat": True, "pairs": ("chosen", "rejected"), "keep": ["score"]}
    tokpack.encode(path, folder / name, tokenizer=tokenizer, workers=1, **options)
    return folder / name


def pairs_of(prefix: Path | str) -> list[Pair]:
    data = MMapIndexedDataset(prefix)
    documents = [tuple(data.document(number).tolist()) for number in range(data.documents)]
    return list(zip(documents[::2], documents[1::2], strict=True))


@pytest.fixture(autouse=True)
def _trusted(prefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, str(prefs.parent))


@pytest.fixture(scope="module")
def prefs(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    folder = tmp_path_factory.mktemp("prefs")
    return encoded(folder, "prefs", tokenizer, records(60, 1))


def write_evals(folder: Path, text: str) -> Path:
    path = folder / "evals.txt"
    path.write_text(f"{text}\n")
    return path


COMMANDS: dict[str, Callable[[Path, Path], object]] = {
    "dedup": tokpack.dedup,
    "dedup near": lambda a, o: tokpack.dedup(a, o, near=0.5),
    "dedup near, trained": lambda a, o: tokpack.dedup(a, o, near=0.5, on="trained"),
    "random": lambda a, o: tokpack.select(a, o, random=0.5),
    "rest": lambda a, o: tokpack.select(a, f"{o}-in", random=0.5, rest=o),
    "tokens": lambda a, o: tokpack.select(a, o, tokens=2000),
    "first": lambda a, o: tokpack.select(a, o, first=31),
    "where": lambda a, o: tokpack.select(a, o, where="tokens % 3 <> 0"),
    "repeat": lambda a, o: tokpack.select(a, o, repeat="score"),
    "join": lambda a, o: tokpack.select(
        a,
        o,
        join=__import__("pyarrow").table({"line": [1, 5, 9], "good": [True, True, False]}),
        on="line",
        where="good",
    ),
    "decontaminate": lambda a, o: tokpack.decontaminate(
        a, o, against=write_evals(o.parent, f"no {records(60, 1)[3]['rejected'][3:]}"), shortest=1
    ),
    "view of views": lambda a, o: (
        tokpack.select(a, f"{o}-1", first=40),
        tokpack.dedup(f"{o}-1", f"{o}-2"),
        tokpack.select([f"{o}-2", f"{o}-1"], f"{o}-3", random=0.7),
        tokpack.select(f"{o}-3", o, where="score > 1"),
    ),
    "merge": lambda a, o: tokpack.merge([a, a], o),
    "merge of a view": lambda a, o: (
        tokpack.select(a, f"{o}-1", repeat=2),
        tokpack.merge(f"{o}-1", o),
    ),
    "virtual": lambda a, o: tokpack.merge([a, a], o, virtual=True),
    "virtual, dedup": lambda a, o: (
        tokpack.merge([a, a], f"{o}-1", virtual=True),
        tokpack.dedup(f"{o}-1", o),
    ),
    "convert": lambda a, o: tokpack.convert(a, o, dtype="int32"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_pairs_stay_pairs(prefs: Path, tmp_path: Path, command: str) -> None:
    pytest.importorskip("duckdb")
    COMMANDS[command](prefs, tmp_path / "out")
    result = MMapIndexedDataset(tmp_path / "out")
    assert result.pairs
    kept = pairs_of(tmp_path / "out")
    assert {*kept} <= {*pairs_of(prefs)}
    assert 0 < len(kept) < 240
    table = result.table(["line"])["line"].to_pylist()
    assert table[::2] == table[1::2]
    assert len(GPTDataset(tmp_path / "out", 64, packing="pairs")) == 2 * len(kept)


@pytest.mark.parametrize(
    "how", [{"documents": 7}, {"tokens": 700}, {"parts": 7}, {"shares": [5, 3, 1]}]
)
def test_a_split_cuts_between_pairs(prefs: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    made = tokpack.split(prefs, tmp_path / "part", **how)
    assert len(made) > 2
    joined = [pair for name, _ in made for pair in pairs_of(name)]
    assert joined == pairs_of(prefs)
    assert all(manifest.pairs and MMapIndexedDataset(name).pairs for name, manifest in made)
    if "documents" in how:
        assert {manifest.documents for _, manifest in made[:-1]} == {6}


def test_a_split_of_less_than_a_pair_is_refused(prefs: Path, tmp_path: Path) -> None:
    for how in ({"documents": 1}, {"parts": 61}):
        with pytest.raises(UsageError, match="pairs"):
            tokpack.split(prefs, tmp_path / "part", **how)


def test_an_evaluation_text_takes_both_answers(prefs: Path, tmp_path: Path) -> None:
    evals = write_evals(tmp_path, records(60, 1)[0]["rejected"])
    result = tokpack.decontaminate(prefs, tmp_path / "out", against=evals, shortest=1, common=0)
    [share] = result.datasets
    wanted = records(60, 1)[0]["rejected"].split()
    has = [
        any(words[i : i + len(wanted)] == wanted for i in range(len(words)))
        for row in records(60, 1)
        for answer in ("chosen", "rejected")
        for words in [f"{row['prompt']} assistant {row[answer]}".split()]
    ]
    matched = [a or b for a, b in zip(has[::2], has[1::2], strict=True)]
    assert share.matched == sum(has) > 0
    assert share.partners == 2 * sum(matched) - sum(has) > 0
    assert share.read == share.kept + share.matched + share.partners == 120
    kept = [p for p, out in zip(pairs_of(prefs), matched, strict=True) if not out]
    assert pairs_of(tmp_path / "out") == kept


def write_pairs(prefix: Path, pairs: Sequence[Pair]) -> Path:
    """A dataset of pairs, by its manifest."""
    write_plainly(prefix, plain([[[*one]] for pair in pairs for one in pair]))
    count = 2 * len(pairs)
    manifest_for(prefix, {}, pairs=True, records=count, documents=count, empty=0, rejected=0)
    return prefix


answers = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)


@given(st.lists(st.lists(st.tuples(answers, answers), max_size=8), min_size=1, max_size=2))
@settings(max_examples=30, deadline=None)
def test_a_copy_of_a_pair_has_both_of_its_answers(parts: list[list[Pair]]) -> None:
    if not any(parts):
        return
    with tempfile.TemporaryDirectory() as name:
        prefixes = [write_pairs(Path(name) / f"p{n}", part) for n, part in enumerate(parts)]
        report = tokpack.dedup(prefixes, Path(name) / "out")
        pairs = [pair for part in parts for pair in part]
        assert pairs_of(Path(name) / "out") == list(dict.fromkeys(pairs))
        for share, part in zip(report.datasets, parts, strict=True):
            assert share.read.documents == 2 * len(part)
            assert share.kept.documents + share.exact.documents == 2 * len(part)
        assert report.clusters == sum(pairs.count(one) > 1 for one in {*pairs})


long = st.lists(st.integers(0, 9), min_size=12, max_size=12).map(tuple)


@given(st.lists(st.tuples(long, long), min_size=2, max_size=4), st.randoms())
@settings(max_examples=20, deadline=None)
def test_a_near_copy_of_a_pair_is_like_it_in_both(drawn: list[Pair], rng: random.Random) -> None:
    def changed(answer: tuple[int, ...]) -> tuple[int, ...]:
        return (*answer[:-1], answer[-1] + 10) if rng.random() < 0.6 else answer[::-1]

    pairs = [*drawn, *((changed(a), changed(b)) for a, b in drawn)]
    with tempfile.TemporaryDirectory() as name:
        write_pairs(Path(name) / "p", pairs)
        # Two alike to 0.6 are found with a probability of 1 - 10^-9.
        report = tokpack.dedup(
            Path(name) / "p", Path(name) / "out", near=0.6, ngram=2, bands=60, rows=3
        )
        unique = list(dict.fromkeys(pairs))
        alike = [
            (i, k)
            for i, one in enumerate(unique)
            for k, other in enumerate(unique[:i])
            if all(jaccard(list(a), list(b), 2) >= 0.6 for a, b in zip(one, other, strict=True))
        ]
        firsts = components(len(unique), alike)
        expected = [one for i, one in enumerate(unique) if firsts[i] == i]
        assert pairs_of(Path(name) / "out") == expected
        assert report.datasets[0].near.documents == 2 * (len(unique) - len(expected))


def test_pairs_with_one_preferred_answer_are_told_apart_by_the_other(tmp_path: Path) -> None:
    """Those are no copies, and do not hide copies that lie between them."""
    rng = random.Random(5)
    good = tuple(rng.choices(range(1000), k=40))
    bad = [tuple(rng.choices(range(1000), k=40)) for _ in range(60)]
    copies = [(*one[:-1], 7) for one in bad]
    pairs = [(good, one) for one in (*bad, *rng.sample(copies, len(copies)))]
    report = tokpack.dedup(write_pairs(tmp_path / "p", pairs), tmp_path / "out", near=0.7)
    assert pairs_of(tmp_path / "out") == pairs[: len(bad)]
    assert report.datasets[0].near.documents == 2 * len(copies)


@pytest.mark.parametrize("on", ["all", "trained"])
def test_tasks_find_the_copies_of_pairs_by_the_same_tokens(
    prefs: Path, tmp_path: Path, on: Literal["all", "trained"]
) -> None:
    """Across two datasets, of which one repeats pairs of the other, and of a view."""
    tokpack.select(prefs, tmp_path / "some", where="document < 40")
    tokpack.merge(tmp_path / "some", tmp_path / "again")
    for inputs in ([prefs, tmp_path / "again"], [tmp_path / "some", prefs]):
        rules: dict[str, Any] = {"near": 0.5, "on": on, "overwrite": True}
        tokpack.dedup(inputs, tmp_path / "whole", **rules)
        tokpack.dedup(inputs, tmp_path / "clean", **rules, tasks=directly)
        whole = (tmp_path / "whole.selection").read_bytes()
        assert (tmp_path / "clean.selection").read_bytes() == whole
        tables = [pq.read_table(tmp_path / f"{one}.clusters.parquet") for one in ("clean", "whole")]
        assert tables[0].equals(tables[1])
        assert tables[0].num_rows


def test_repeats_of_a_pair_are_alike(prefs: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    with pytest.raises(UsageError, match=r"^repeat tokens: .*document 0 .*document 1\b"):
        tokpack.select(prefs, tmp_path / "out", repeat="tokens")
    tokpack.select(prefs, tmp_path / "three", repeat=3)
    assert pairs_of(tmp_path / "three") == [pair for pair in pairs_of(prefs) for _ in range(3)]


def test_pairs_and_others_do_not_mix(prefs: Path, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    tokpack.encode(tmp_path / "chats.jsonl", tmp_path / "chats", tokenizer=tokenizer, chat=True)
    inputs = [prefs, tmp_path / "chats"]
    for command in (tokpack.merge, tokpack.dedup, tokpack.select):
        with pytest.raises(UsageError, match=r"prefs .*chats "):
            command(inputs, tmp_path / "out")
    with pytest.raises(UsageError, match="packing='pairs'"):
        GPTDataset(tmp_path / "chats", 64, packing="pairs")


def test_near_copies_of_pairs_are_always_compared(prefs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="verify"):
        tokpack.dedup(prefs, tmp_path / "out", near=0.8, verify=False)


def test_a_view_of_single_answers_has_no_pairs(prefs: Path, tmp_path: Path) -> None:
    data = [MMapIndexedDataset(prefs)]
    for name, numbers in (
        ("one", [0]),
        ("shifted", [1, 2]),
        ("swapped", [1, 0]),
        ("twice", [0, 0]),
    ):
        manifest = write_view(tmp_path / name, data, np.array(numbers), made_by={})
        assert not manifest.pairs
        assert not MMapIndexedDataset(tmp_path / name).pairs
        with pytest.raises(UsageError, match="packing='pairs'"):
            GPTDataset(tmp_path / name, 64, packing="pairs")
    whole = write_view(tmp_path / "whole", data, np.array([8, 9, 0, 1, 8, 9]), made_by={})
    assert whole.pairs


def as_of_an_earlier_version(prefix: Path, **options: Any) -> MMapIndexedDataset:
    """The dataset with a manifest that says of pairs what earlier versions said."""
    path = prefix.with_suffix(".json")
    manifest = json.loads(path.read_text())
    manifest.pop("pairs", None)
    manifest["options"] |= options
    path.write_text(json.dumps(manifest))
    return MMapIndexedDataset(prefix)


def test_pairs_of_earlier_versions(prefs: Path, tmp_path: Path) -> None:
    """What encode made has some; what was chosen or joined where its lines or numbers say so."""
    rows = records(60, 1)[:6]
    tokenizer = Path(MMapIndexedDataset(prefs).tokenizer["name"])  # type: ignore[index]
    whole = encoded(tmp_path, "whole", tokenizer, rows)
    assert as_of_an_earlier_version(whole).pairs
    assert as_of_an_earlier_version(whole, merged=["a", "b"]).pairs  # by the lines in its table
    data = [MMapIndexedDataset(prefs)]
    for name, numbers, right in (
        ("view", [4, 5, 0, 1], True),
        ("torn", [5, 6, 0, 1], False),
        ("odd", [4], False),
    ):
        write_view(tmp_path / name, data, np.array(numbers), made_by={"dedup": {}})
        assert as_of_an_earlier_version(tmp_path / name).pairs is right
        tokpack.merge(tmp_path / name, tmp_path / f"{name}-copy")
        copy = as_of_an_earlier_version(tmp_path / f"{name}-copy")
        assert copy.pairs is right
    copies = [0, 0, 2, 2]  # an answer twice has the same line twice
    write_view(tmp_path / "twice", data, np.array(copies), made_by={"select": {}})
    tokpack.merge(tmp_path / "twice", tmp_path / "twice-copy")
    assert not as_of_an_earlier_version(tmp_path / "twice-copy").pairs


def test_what_is_trained_makes_near_copies(tmp_path: Path, tokenizer: Path) -> None:
    """One long prompt for all; answers of which some are nearly the same."""
    rng = random.Random(3)
    prompt = " ".join(rng.choices(WORDS, k=500))
    texts = [" ".join(rng.choices(WORDS, k=25)) for _ in range(30)]
    texts += [f"{text} and" for text in texts[:5]]
    rows = [
        {
            "messages": [
                {"role": "system", "content": prompt},
                {"role": "user", "content": f"{rng.choice(WORDS)}?"},
                {"role": "assistant", "content": text},
            ]
        }
        for text in texts
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokpack.encode(tmp_path / "chats.jsonl", tmp_path / "chats", tokenizer=tokenizer, chat=True)
    whole = tokpack.dedup(tmp_path / "chats", tmp_path / "a", near=0.8, threads=1)
    assert whole.datasets[0].near.documents > 30
    assert whole.datasets[0].most_of_one > 30
    trained = tokpack.dedup(tmp_path / "chats", tmp_path / "b", near=0.8, on="trained", threads=2)
    assert trained.datasets[0].near.documents == 5
    assert trained.datasets[0].most_of_one == 1
    kept = MMapIndexedDataset(tmp_path / "b")
    assert kept.documents == 30
    tokpack.merge(tmp_path / "b", tmp_path / "c")
    tokpack.select([tmp_path / "c", tmp_path / "chats"], tmp_path / "d")
    again = tokpack.dedup(tmp_path / "d", tmp_path / "e", near=0.8, on="trained")
    assert again.datasets[0].kept.documents == 30


def test_on_trained_needs_a_mask(tmp_path: Path) -> None:
    write_plainly(tmp_path / "a", plain([[[1, 2, 3]]]))
    for options, says in (
        ({"near": 0.8, "on": "trained"}, "on='trained'"),
        ({"on": "trained"}, "near=0.8"),
        ({"near": 0.8, "on": "roles"}, "on='roles'"),
    ):
        with pytest.raises(UsageError, match=says):
            tokpack.dedup(tmp_path / "a", tmp_path / "b", **options)
