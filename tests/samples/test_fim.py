"""Filling in the middle: a pure function of the sample's number that loses no token."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import orders_twin as twin
from support.indexed_twin import Plain, write_plainly
from support.samples_twin import some_lengths, write_dataset

from tokpack import GPTDataset, load_tokenizer
from tokpack.samples.fim import FIM, FillInTheMiddle

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers import Tokenizer

EOD, SPLIT, PREFIX, MIDDLE, SUFFIX, PAD = range(90, 96)
WORD = 2**64
IDS = {"prefix_id": PREFIX, "middle_id": MIDDLE, "suffix_id": SUFFIX}


def rearrange(
    pieces: list[list[int]], fim: FIM, key: tuple[int, ...], number: int, capacity: int
) -> tuple[list[int], list[int]]:
    """Plain twin of FillInTheMiddle: the tokens of the sample, and how many each piece has."""
    base = twin.mix(*key, number, 4)
    count = 0

    def permuted(document: list[int], rate: float) -> list[int]:
        nonlocal count
        draws = [twin.mix(base, count, what) for what in range(4)]
        count += 1
        if draws[0] >= int(rate * WORD):
            return document
        a, b = sorted(draw * (len(document) + 1) // WORD for draw in draws[2:])
        prefix, middle, suffix = document[:a], document[a:b], document[b:]
        if draws[1] < int(fim.spm_rate * WORD):
            return [PREFIX, SUFFIX, *suffix, MIDDLE, *prefix, *middle]
        return [PREFIX, *prefix, SUFFIX, *suffix, MIDDLE, *middle]

    def parted(tokens: list[int], at: int) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        for token in tokens:
            if token == at:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts

    def joined(parts: list[list[int]], by: int) -> list[int]:
        return [token for part in parts for token in [*part, by]][:-1]

    lengths, text = [], []
    for piece in pieces:
        documents = []
        for document in parted(piece, EOD):
            if not document:
                documents.append(document)
            elif fim.split_id is None or fim.split_id not in document:
                documents.append(permuted(document, fim.rate))
            else:
                chosen = twin.mix(base, count, 0) < int(fim.rate * WORD)
                count += 1
                files = parted(document, fim.split_id)
                if chosen:
                    files = [permuted(file, fim.fragment_rate) if file else file for file in files]
                documents.append(joined(files, fim.split_id))
        found = joined(documents, EOD)
        lengths.append(max(min(len(found), capacity - len(text)), 0))
        text += found
    text = text[:capacity]
    return text + [0 if fim.pad_id is None else fim.pad_id] * (capacity - len(text)), lengths


TOKENS = st.one_of(st.integers(1, 20), st.sampled_from((EOD, SPLIT)))
RATES = st.sampled_from((0.0, 0.3, 0.5, 1.0))


@given(
    samples=st.lists(st.lists(st.lists(TOKENS, max_size=12), max_size=4), min_size=1, max_size=3),
    rates=st.tuples(RATES, RATES, RATES),
    split=st.sampled_from((None, SPLIT)),
    pad=st.sampled_from((None, PAD)),
    extra=st.integers(0, 1),
)
@settings(max_examples=120, deadline=None)
def test_equals_the_twin(
    samples: list[list[list[int]]],
    rates: tuple[float, float, float],
    split: int | None,
    pad: int | None,
    extra: int,
) -> None:
    fim = FIM(
        **IDS, rate=rates[0], spm_rate=rates[1], fragment_rate=rates[2], split_id=split, pad_id=pad
    )
    number = 2**40 + len(samples[0])
    longest = max(sum(map(len, pieces)) for pieces in samples)
    seq_length = max(longest + 1 - extra, 1)  # there may be room for one more
    capacity = seq_length + extra
    key = (7, 2**63, 0, 5)
    text = np.zeros((len(samples) + 1, seq_length + 1), np.int64)
    rows = [[9, 4, len(piece)] for pieces in samples for piece in pieces]
    places = np.arange(len(samples))[::-1] + 1
    for pieces, place in zip(samples, places, strict=True):
        flat = [token for piece in pieces for token in piece]
        text[place, : len(flat)] = flat
    numbers = [number + i for i in range(len(samples))]
    given_rows = np.array(rows, np.int64).reshape(-1, 3)
    found = FillInTheMiddle(fim, EOD, capacity, key).fill(
        text, given_rows, np.array([len(pieces) for pieces in samples]), places, numbers
    )
    assert given_rows.tolist() == rows
    lengths = []
    for pieces, place, one in zip(samples, places, numbers, strict=True):
        expected, own = rearrange(pieces, fim, key, one, capacity)
        assert text[place].tolist() == expected + [0] * (1 - extra)
        lengths += own
    assert found[:, 2].tolist() == lengths
    assert not text[0].any()


def restored(tokens: list[int]) -> list[int]:
    """A rearranged document as it was."""
    assert tokens[0] == PREFIX
    suffix, middle = tokens.index(SUFFIX), tokens.index(MIDDLE)
    if suffix == 1:  # SPM: prefix and middle follow one another
        return tokens[middle + 1 :] + tokens[2:middle]
    return tokens[1:suffix] + tokens[middle + 1 :] + tokens[suffix + 1 : middle]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(0, 2**62), RATES)
@settings(max_examples=80, deadline=None)
def test_what_is_rearranged_can_be_restored(document: list[int], number: int, spm: float) -> None:
    capacity = len(document) + 3
    text = np.array([[*document, 0, 0, 0]], np.int64)
    fill = FillInTheMiddle(FIM(**IDS, rate=1, spm_rate=spm), EOD, capacity, (1,))
    rows = fill.fill(
        text, np.array([[0, 0, len(document)]]), np.array([1]), np.array([0]), [number]
    )
    assert rows[0, 2] == capacity
    tokens = text[0].tolist()
    assert Counter(tokens) == Counter([*document, PREFIX, MIDDLE, SUFFIX])
    assert restored(tokens) == document
    assert (tokens[1] == SUFFIX) >= (spm == 1)


def write_documents(prefix: Path, count: int = 200) -> None:
    """Documents of tokens below 90, each with EOD."""
    draw = np.random.default_rng(3)
    lengths = some_lengths(count)
    sequences = [[*draw.integers(1, 90, length).tolist(), EOD] for length in lengths]
    write_plainly(prefix, Plain("i", sequences, list(range(count + 1))))


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_a_sample_depends_on_its_number_alone(tmp_path: Path, packing: str) -> None:
    write_documents(tmp_path / "data")
    options: dict[str, Any] = {"eod_id": EOD, "packing": packing, "document_boundaries": True}
    plain = GPTDataset(tmp_path / "data", 128, **options)
    dataset = GPTDataset(tmp_path / "data", 128, fim=FIM(**IDS, rate=0.7), **options)
    assert len(dataset) == len(plain)
    numbers = [5, 0, 2, 5, len(dataset) + 1]
    batch = dataset.batch(numbers)
    again = pickle.loads(pickle.dumps(dataset))
    changed = 0
    for place, number in enumerate(numbers):
        sample = again.sample(number)
        for name, array in sample.items():
            assert np.array_equal(array, batch[name][place])
        changed += not np.array_equal(sample["tokens"], plain.sample(number)["tokens"])
        # boundaries lie behind EOD, also where a document became longer
        edges = [e for e in dict.fromkeys(sample["cu_seqlens"].tolist()) if 0 < e < 128]
        padding = [e for e in edges if not sample["tokens"][e:].any()]
        for edge in set(edges) - set(padding):
            assert sample["tokens"][edge - 1] == EOD
            assert sample["position_ids"][edge] == 0
    assert changed >= 3
    other = GPTDataset(tmp_path / "data", 128, fim=FIM(**IDS, rate=0.7), seed=7, **options)
    assert len({d.fingerprint for d in (plain, dataset, again, other)}) == 3
    off = GPTDataset(tmp_path / "data", 128, fim=FIM(**IDS, rate=0), **options)
    for number in numbers:
        for name, array in plain.sample(number).items():
            assert np.array_equal(off.sample(number)[name], array)


def test_the_seed_decides(tmp_path: Path) -> None:
    write_plainly(tmp_path / "data", Plain("i", [[*range(1, 60), EOD]], [0, 1]))
    options: dict[str, Any] = {"packing": "document", "fim": FIM(**IDS, rate=1), "eod_id": EOD}
    samples = [
        GPTDataset(tmp_path / "data", 80, seed=seed, **options)[0]["tokens"].tolist()
        for seed in range(5)
    ]
    assert len(set(map(tuple, samples))) == 5


def test_options_by_name_are_those_of_a_fim(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [50, 50])
    from_file: Any = IDS | {"rate": 1}
    dataset = GPTDataset(tmp_path / "data", 8, fim=from_file, eod_id=0)
    assert PREFIX in dataset[0]["tokens"]


NAMES = {"prefix_id": 50300, "middle_id": 50301, "suffix_id": 50302}
ROOM = 400


class Characters:
    """FIM between characters, always, of texts in samples of ROOM tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._encoder = tokenizer.encoder(dtype="int32", append_eod=False)
        fim = FIM(**NAMES, rate=1, level="character", tokenizer=tokenizer)
        self._fill = pickle.loads(pickle.dumps(FillInTheMiddle(fim, 50279, ROOM, (3,))))

    def encode(self, text: str) -> list[int]:
        data = np.frombuffer(text.encode(), np.uint8)
        return self._encoder.encode(data, np.array([[0, len(data)]])).ids.tolist()

    def rearrange(self, ids: list[int], number: int) -> list[int]:
        text = np.zeros((1, ROOM), np.int64)
        text[0, : len(ids)] = ids
        rows = np.array([[0, 0, len(ids)]])
        rows = self._fill.fill(text, rows, np.array([1]), np.array([0]), [number])
        assert not text[0, rows[0, 2] :].any()
        return text[0, : rows[0, 2]].tolist()


@pytest.fixture(scope="module")
def characters(data: Path) -> Characters:
    return Characters(load_tokenizer(data / "tokenizers" / "20B_tokenizer.json"))


@given(
    st.lists(
        st.sampled_from(("return x", " été", "日本語", "\n    ", "<|endoftext|>", "🙂", "a", " ")),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 2**62),
)
@settings(max_examples=80, deadline=None)
def test_characters_are_cut_and_encoded_again(
    characters: Characters, words: list[str], number: int
) -> None:
    text = "".join(words)
    found = characters.rearrange(characters.encode(text), number)
    mapped = [{50300: PREFIX, 50301: MIDDLE, 50302: SUFFIX}.get(t, t + 1000) for t in found]
    assert characters.tokenizer.decode([t - 1000 for t in restored(mapped)]) == text


def test_a_cut_may_lie_within_a_token(characters: Characters) -> None:
    words = [token for token in characters.tokenizer.spec.vocab if token and token.isalpha()]
    ids = characters.encode(max(words, key=len).decode())
    found = [token for k in range(20) for token in characters.rearrange(ids, k)]
    assert set(found) - {*ids, *NAMES.values()}


def test_special_tokens_stay_special(characters: Characters) -> None:
    ids = characters.encode("x<|endoftext|>y")
    assert 0 in ids
    assert any(0 in characters.rearrange(ids, k) for k in range(20))


def test_half_a_character_is_not_lost(characters: Characters) -> None:
    ids = characters.encode("🙂🙂")[1:]
    assert Counter(characters.rearrange(ids, 1)) == Counter([*ids, *NAMES.values()])
