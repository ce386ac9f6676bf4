"""The datasets of a blend: found by name, opened once, and compared with what the blend says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.dataset import (
    MMapIndexedDataset,
    bin_path,
    check_tokenizers,
    idx_path,
    prefix_of,
)
from tokpack.dataset.manifest import checksum_of
from tokpack.errors import InputError
from tokpack.samples.cache import versioned
from tokpack.samples.tracks import check_labels
from tokpack.storage import is_url
from tokpack.storage.disk import no_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokpack.samples.blend.spec import BlendSpec

_SUFFIXES = ("", "_text_document", "_text_sentence")
_CHECKSUMS = ("xxh3_blocks", "xxh3_128")  # of a whole .bin, not of pieces that were joined
_NAMED = 8  # the most datasets that one warning names


def open_datasets(spec: BlendSpec) -> dict[str, MMapIndexedDataset]:
    """The datasets by their names in ``spec``, unchanged since the blend was saved.

    InputError for one that is missing, empty, or not what its manifest or the blend says;
    FormatError if it or its manifest is broken; UsageError for datasets of different tokenizers,
    and for labels that do not fit.
    """
    opened: dict[str, MMapIndexedDataset] = {}
    by_prefix: dict[str, MMapIndexedDataset] = {}  # a dataset may have several names

    def open_once(name: str) -> MMapIndexedDataset:
        if name not in opened:
            dataset = _open(name)
            opened[name] = by_prefix.setdefault(dataset.path_prefix, dataset)
        return opened[name]

    entries = [entry for _, group in spec.groups() for entry in group]
    for entry in entries:
        then = {"fingerprint": entry.fingerprint, "checksum": entry.checksum}
        _check_unchanged(spec.source, open_once(entry.prefix), then)
    check_tokenizers((one.path_prefix, one.tokenizer) for one in by_prefix.values())
    for entry in entries:
        if entry.labels is not None:
            labels = open_once(entry.labels)
            _check_unchanged(spec.source, labels, {"fingerprint": entry.labels_fingerprint})
            check_labels(labels, opened[entry.prefix])
    return opened


def find_prefix(name: str) -> str:
    """The dataset that a user means: NAME, one of its files, or NAME_text_document."""
    base = prefix_of(name)
    for suffix in _SUFFIXES:
        if MMapIndexedDataset.exists(base + suffix):
            return base + suffix
    tried = ", ".join(f"{base}{suffix}.idx" for suffix in _SUFFIXES)
    text = f"{name}: no such dataset; looked for {tried}, each with its .bin"
    raise InputError(text) if is_url(base) else no_dataset(base, text)


def _open(name: str) -> MMapIndexedDataset:
    dataset = MMapIndexedDataset(find_prefix(name))
    if not dataset.token_count:
        raise InputError(
            f"{dataset.path_prefix}: no tokens in it: leave it out, or encode it again"
        )
    manifest, prefix = dataset.manifest, dataset.path_prefix
    if manifest is None or manifest.pieces is not None:  # virtual ones check their pieces
        return dataset
    for shard in dataset.shards():
        sizes = {
            bin_path(prefix): (shard.tokens.nbytes, manifest.bin["bytes"]),
            idx_path(prefix): (shard.idx_bytes, manifest.idx["bytes"]),
        }
        for path, (size, recorded) in sizes.items():
            if size != recorded:
                raise InputError(
                    f"{path} has {size:,} bytes, its manifest says {recorded:,}: the dataset is "
                    f"not what was written; `tokpack verify {prefix}` says more"
                )
    return dataset


def marks(dataset: MMapIndexedDataset) -> dict[str, str | None]:
    """The identity of a dataset in a saved blend.

    ``fingerprint`` is that of the lengths and of some tokens, which decide the stateless order.
    ``checksum`` is that of the whole .bin in the manifest, preceded by its kind, or None; ``tokpack
    verify`` compares it with the file.
    """
    manifest, checksum = dataset.manifest, None
    for kind in _CHECKSUMS:
        if manifest and manifest.bin.get(kind):
            checksum = f"{kind}:{checksum_of(manifest.bin)}"
    return {"fingerprint": versioned(f"{dataset.fingerprint:016x}"), "checksum": checksum}


def _check_unchanged(
    source: str, dataset: MMapIndexedDataset, marked: Mapping[str, str | None]
) -> None:
    marks_now = marks(dataset)
    for what, then in marked.items():
        now = marks_now[what]
        # The same tokens may have checksums of another kind, or of several files.
        comparable = (
            then and now and (what != "checksum" or then.split(":")[0] == now.split(":")[0])
        )
        if comparable and then != now:
            raise InputError(
                f"{source}: {dataset.path_prefix} has changed since the blend was saved ({what} "
                f"{now}, then {then}): restore the old data, or make the blend again"
            )


def unchecked(datasets: Sequence[MMapIndexedDataset]) -> list[str]:
    """The checks that missing or incomplete manifests made impossible, in words."""
    without = [d for d in datasets if d.manifest is None]
    silent = [d for d in datasets if d.manifest and _sha256(d) is None]
    compared = [d for d in datasets if _sha256(d) is not None]
    sentences = []
    if without:
        sentences.append(
            f"no manifest says which tokenizer made {_names(without)}, nor whether it is whole"
        )
    if silent:
        sentences.append(f"the manifest does not say which tokenizer made {_names(silent)}")
    if compared and (without or silent):
        sentences.append(
            f"whether {_names([*without, *silent])} has the tokenizer of {_names(compared)} could "
            "not be checked: a model cannot read ids of two"
        )
    return sentences


def framed_apart(datasets: Sequence[MMapIndexedDataset]) -> list[str]:
    """A sentence if documents begin or end with different tokens, by their manifests; else none.

    Conversations are not compared, because their template decides how they begin and end.
    """
    alike: dict[str, list[MMapIndexedDataset]] = {}
    for dataset in datasets:
        manifest = dataset.manifest
        if manifest and manifest.frame and not manifest.roles:
            special = manifest.tokenizer.get("special_ids") or {}
            names = {i: name for name, i in special.items()}
            words = [
                f"{how} {' '.join(names.get(i, str(i)) for i in side)}"
                for how, side in zip(("begin with", "end with"), manifest.frame, strict=True)
                if side
            ]
            alike.setdefault(" and ".join(words) or "have no EOD", []).append(dataset)
    groups = [f"those of {_names(some)} {words}" for words, some in alike.items()]
    return [f"documents begin or end differently: {', '.join(groups)}"] if groups[1:] else []


def pairs_alone(datasets: Sequence[MMapIndexedDataset]) -> list[str]:
    """A sentence if there are pairs that the order does not keep together; else none."""
    paired = [d for d in datasets if d.manifest and d.manifest.options.get("pairs")]
    if not paired:
        return []
    return [
        f"{_names(paired)}: the documents are pairs of a chosen and a rejected answer, and the "
        "rejected are trained on too: read them with packing pairs, or select the chosen"
    ]


def _names(datasets: Sequence[MMapIndexedDataset]) -> str:
    more = f" and {len(datasets) - _NAMED} more" if len(datasets) > _NAMED else ""
    return ", ".join(dataset.path_prefix for dataset in datasets[:_NAMED]) + more


def _sha256(dataset: MMapIndexedDataset) -> object:
    return None if dataset.tokenizer is None else dataset.tokenizer.get("sha256")
