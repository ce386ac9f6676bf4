"""Samples of datasets with tracks: which labels count, how much, and what they are."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gather_twin import same, stacked
from support.samples_twin import some_lengths

from tokpack import BlendedDataset, GPTDataset, MMapIndexedDataset, MMapIndexedDatasetBuilder
from tokpack.cli import main
from tokpack.dataset.merge import merge
from tokpack.documents import write_view
from tokpack.errors import FormatError, UsageError
from tokpack.samples import FIM, SampleIterator, open_blend
from tokpack.samples.look import look
from tokpack.samples.tracks import count_trained, track_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

NAMES = ("mask", "weights", "labels")
HALVES = (1.0, 0.5, 0.0, -2.0, 2.0**-24)  # of which float16 has all


def value_of(name: str, token: int) -> float:
    """Some value for a token; no token comes twice in these datasets."""
    if name == "labels":
        return -100 if token % 4 == 0 else token + 1000
    return int(token % 3 > 0) if name == "mask" else HALVES[token % 5]


def write(
    prefix: Path, lengths: Sequence[int], tracks: Iterable[str] = (), *, first: int = 1
) -> int:
    """A dataset of the tokens first, first + 1, ...; the token behind the last."""
    tracks = list(tracks)
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", np.uint16, tracks=tracks) as builder:
        for length in lengths:
            ids = range(first, first + length)
            first += length
            builder.add_item(
                list(ids), **{name: [value_of(name, token) for token in ids] for name in tracks}
            )
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
    return first


def expected(plain: dict[str, Any], tracks: dict[int, Iterable[str]]) -> dict[str, Any]:
    """A sample as it is with the tracks that the dataset of each token has (by first tokens)."""
    sample = {name: array.copy() for name, array in plain.items()}
    for place, token in enumerate(plain["labels"].tolist()):
        if token == 0 or not plain["loss_mask"][place]:
            if token and "labels" in tracks[max(first for first in tracks if first <= token)]:
                sample["labels"][place] = max(value_of("labels", token), 0)
            continue
        own = tracks[max(first for first in tracks if first <= token)]
        for name in own:
            value = value_of(name, token)
            if name == "labels":
                sample["labels"][place] = max(value, 0)
                value = value >= 0
            sample["loss_mask"][place] *= value
    return sample


OPTIONS = st.sampled_from(
    [
        {},
        {"add_extra_token": False},
        {"order": "stateless-blocks", "document_boundaries": True},
        {"packing": "best_fit"},
        {"packing": "best_fit", "pad_to_multiple_of": 8},
        {"packing": "document"},
        {"order": "megatron", "drop_last": False, "samples": 40},
        {"eod_mask_loss": True, "eod_id": 7},
        {"order": "neox", "packing": "pack_until_overflow", "samples": 9},
    ]
)


@settings(max_examples=20, deadline=None)
@given(
    parts=st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), min_size=3, max_size=12).filter(lambda n: max(n) > 20),
            st.lists(st.sampled_from(NAMES), unique=True),
        ),
        min_size=1,
        max_size=3,
    ),
    how=st.sampled_from(["files", "view"]),
    options=OPTIONS,
    picks=st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
)
def test_labels_count_as_tracks_say(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[list[int], list[str]]],
    how: str,
    options: dict[str, Any],
    picks: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("tracks")
    tracks, first, prefixes = {}, 1, []
    for number, (lengths, names) in enumerate(parts):
        tracks[first] = names
        prefixes.append(str(folder / str(number)))
        first = write(folder / str(number), lengths, names, first=first)
    prefix = prefixes[0]
    if how == "view":
        prefix = str(folder / "view")
        documents = sum(len(lengths) for lengths, _ in parts)
        chosen = np.arange(documents)[:: 1 + len(parts) % 2]
        write_view(prefix, [*map(MMapIndexedDataset, prefixes)], chosen, made_by={})
    elif len(parts) > 1:
        prefix = str(folder / "virtual")
        merge(prefixes, prefix, virtual=True)
    try:
        plain = GPTDataset(prefix, 16, loss="all", **options)
    except UsageError:  # too few tokens for a sample
        return
    dataset = GPTDataset(prefix, 16, **options)
    if options.get("order") == "neox" and any("labels" in names for names in tracks.values()):
        return  # leaves out documents without a label: test_labels has it
    numbers = [pick % len(dataset) for pick in picks]
    wanted = [expected(plain[number], tracks) for number in numbers]
    for number, sample in zip(numbers, wanted, strict=True):
        assert same(dataset[number], sample)
    assert same(dataset.batch(numbers), stacked(wanted))
    assert (dataset.fingerprint == plain.fingerprint) == (not dataset.dataset.tracks)
    assert plain.fingerprint == GPTDataset(prefix, 16, loss="all", **options).fingerprint
    again = pickle.loads(pickle.dumps(dataset))
    assert same(again[numbers[0]], wanted[0])
    if how == "files" and len(parts) > 1:  # the same however the values lie in files
        merge(prefixes, str(folder / "joined"))
        joined = GPTDataset(folder / "joined", 16, **options)
        assert joined.fingerprint == dataset.fingerprint
        assert same(joined.batch(numbers), stacked(wanted))


def test_in_a_blend_each_dataset_counts_as_its_own_tracks_say(tmp_path: Path) -> None:
    tracks, first, datasets = {}, 1, []
    for number, names in enumerate((["mask"], [], ["labels", "weights"])):
        tracks[first] = names
        first = write(tmp_path / str(number), some_lengths(80, number), names, first=first)
        datasets.append(str(tmp_path / str(number)))
    spec: dict[str, Any] = {"datasets": datasets, "seq_length": 32, "packing": "best_fit"}
    blend, plain = (open_blend(spec, loss=loss).train for loss in ("trained", "all"))
    wanted = [expected(plain[number], tracks) for number in range(len(plain))]
    assert same(blend.batch(range(len(blend))), stacked(wanted))
    assert all(map(same, blend.__getitems__(range(len(blend))), wanted))
    assert isinstance(blend, BlendedDataset)
    nested = BlendedDataset([BlendedDataset(blend.datasets[:2]), blend.datasets[2]], [1, 1])
    seen = set()
    for number, sample in enumerate(nested.__getitems__(range(40))):
        which, index = nested.locate(number)
        assert same(sample, nested.datasets[which][index])
        seen.add(which)
    assert seen == {0, 1}


def test_a_dataset_of_labels_takes_the_place_of_a_track(tmp_path: Path) -> None:
    lengths = some_lengths(40)
    write(tmp_path / "text", lengths, ["mask", "labels"])
    with MMapIndexedDatasetBuilder(f"{tmp_path}/labels.bin", np.int32) as builder:
        for tokens in MMapIndexedDataset(tmp_path / "text"):
            builder.add_item(tokens.astype(np.int32) + 3)
            builder.end_document()
        builder.finalize(f"{tmp_path}/labels.idx")
    plain = GPTDataset(tmp_path / "text", 16, loss="all")
    dataset = GPTDataset(tmp_path / "text", 16, labels=tmp_path / "labels")
    for number in range(len(dataset)):
        tokens = plain[number]["labels"]
        assert dataset[number]["labels"].tolist() == (tokens + 3).tolist()
        assert dataset[number]["loss_mask"].tolist() == (tokens % 3 > 0).tolist()
    only = GPTDataset(tmp_path / "text", 16, labels=tmp_path / "labels", loss="all")
    assert only[0]["loss_mask"].tolist() == [1.0] * 16
    assert len({one.fingerprint for one in (plain, dataset, only)}) == 3


def test_neox_leaves_out_documents_whose_labels_are_a_track(tmp_path: Path) -> None:
    write(tmp_path / "text", [3, 9, 5, 1], ["labels"])  # token 4k has no label
    options: dict[str, Any] = {"order": "neox", "packing": "unpacked", "samples": 4}
    order: Any = GPTDataset(tmp_path / "text", 8, **options)._order
    assert order.document_index.tolist() == [0, 1, 2, 3, 0]


def test_the_mask_is_part_of_the_state_of_a_run(tmp_path: Path) -> None:
    lengths = [30] * 50
    write(tmp_path / "text", lengths, ["mask"])
    dataset = GPTDataset(tmp_path / "text", 16)
    before = dataset.fingerprint
    state = SampleIterator(dataset, 2).state_dict()
    with MMapIndexedDatasetBuilder(f"{tmp_path}/text.bin", np.uint16, tracks=["mask"]) as builder:
        for number, tokens in enumerate(MMapIndexedDataset(tmp_path / "text")):
            mask = [value_of("mask", token) for token in tokens.tolist()]
            builder.add_item(tokens, mask=[*mask[:-1], 1 - mask[-1]] if number == 49 else mask)
            builder.end_document()
        builder.finalize(f"{tmp_path}/text.idx")
    changed = GPTDataset(tmp_path / "text", 16)
    assert changed.fingerprint != before == state["fingerprint"]
    assert [values.tolist() for values in track_values(changed.dataset, "mask", 1499, 10**9)] == [
        [1]
    ]


def test_with_loss_of_all_tokens_fim_may_move_them(tmp_path: Path) -> None:
    write(tmp_path / "chat", [50, 50], ["mask", "labels"])
    fim = FIM(prefix_id=1, middle_id=2, suffix_id=3)
    assert len(GPTDataset(tmp_path / "chat", 8, fim=fim, eod_id=0, loss="all")) == 12


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, bits: int) -> None:
    write(tmp_path / "chat", [5, 20, 20], ["weights"])
    path = tmp_path / "chat.weights"
    values = np.fromfile(path, np.uint16)
    values[30] = bits
    values.tofile(path)
    dataset = GPTDataset(tmp_path / "chat", 20, packing="document")
    bad = [k for k in range(3) if dataset.locate(k)[0, 0] == 2]
    with pytest.raises(FormatError, match=r"chat\.weights: .*\[2\]"):
        dataset.batch(range(3))
    for number in {0, 1, 2} - set(bad):
        assert np.isfinite(dataset[number]["loss_mask"]).all()


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_a_look_at_a_sample_says_which_of_its_tokens_are_trained(
    tmp_path: Path, packing: Any
) -> None:
    write(tmp_path / "chat", some_lengths(40), ["mask"])
    samples = GPTDataset(tmp_path / "chat", 24, packing=packing)
    assert not look(GPTDataset(tmp_path / "chat", 24, loss="all"), 0).is_masked
    for number in range(len(samples)):
        sample = look(samples, number)
        assert sample.is_masked
        for piece in sample.pieces:
            found = [place for one in sample.trained(piece) for place in one]
            first = packing == "best_fit" or piece.at == 0  # predicted by nothing that it may see
            assert found == [
                place
                for place, token in enumerate(sample.ids(piece))
                if value_of("mask", token) and not (first and place == 0)
            ]


def test_samples_are_shown_with_marks_around_trained_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MMapIndexedDatasetBuilder(f"{tmp_path}/chat.bin", np.uint16, tracks=["mask"]) as builder:
        builder.add_item([5, 6, 7, 8, 9, 10], mask=[1, 0, 1, 1, 0, 1])
        builder.finalize(f"{tmp_path}/chat.idx")
    words = ["blend", f"{tmp_path}/chat", "--seq-length=6", "--packing=document", "--show=1"]
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    begin = shown.index("  ── 6 tokens of document 0, chat, 3 trained")
    assert shown[begin + 1 :] == ["  5 6 [[7 8]] 9 [[10]]"]
    assert main([*words, "--json"]) == 0
    (sample,) = json.loads(capsys.readouterr().out)["shown"]
    assert sample["documents"][0]["trained"] == [[2, 4], [5, 6]]
    assert main([*words, "--loss=all"]) == 0
    assert "  ── 6 tokens of document 0, chat\n  5 6 7 8 9 10\n" in capsys.readouterr().out


def test_weights_by_trained_tokens_are_shares_of_them(tmp_path: Path) -> None:
    first = write(tmp_path / "chat", [20, 40] * 40, ["mask", "labels"])
    write(tmp_path / "plain", [50] * 60, first=first)
    spec: dict[str, Any] = {
        "datasets": {str(tmp_path / "chat"): 3, str(tmp_path / "plain"): 1},
        "seq_length": 30,
        "by": "trained",
        "samples": 400,
    }
    train = open_blend(spec).train
    loss = np.zeros(2)
    for number in range(400):
        loss[train.locate(number)[0]] += train[number]["loss_mask"].sum()
    assert loss[0] / loss.sum() == pytest.approx(0.75, abs=0.01)
    everything = open_blend(spec, loss="all").train
    assert everything.counts(400) == [300, 100]
    by_size = open_blend({**spec, "datasets": [*spec["datasets"]]}).train
    assert by_size.counts(54)[0] == pytest.approx(54 * 2400 / 5400, abs=1.5)
    for begin, end in ((0, 80), (3, 4), (7, 71)):  # the whole by the manifest, parts by a pass
        tokens = [t for n in range(begin, end) for t in MMapIndexedDataset(tmp_path / "chat")[n]]
        expected = sum(t % 3 > 0 and t % 4 > 0 for t in tokens)
        dataset = MMapIndexedDataset(tmp_path / "chat")
        assert count_trained(dataset, None, range(begin, end)) == expected
        plain = MMapIndexedDataset(tmp_path / "plain")
        assert count_trained(plain, None, range(3, 9)) == 300


def test_a_dataset_without_trained_tokens_has_no_share_of_them(tmp_path: Path) -> None:
    write(tmp_path / "plain", [50] * 9)
    with MMapIndexedDatasetBuilder(f"{tmp_path}/none.bin", np.uint16, tracks=["mask"]) as builder:
        builder.add_item(range(90), mask=[0] * 90)
        builder.finalize(f"{tmp_path}/none.idx")
    spec: dict[str, Any] = {
        "datasets": {str(tmp_path / "plain"): 1, str(tmp_path / "none"): 1},
        "seq_length": 30,
    }
    assert len(open_blend(spec).train) == 17
