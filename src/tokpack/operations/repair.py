"""Rebuild the index of a dataset from what is left of it, into new files."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.errors import FormatError, InputError, OutputError, UsageError
from tokpack.files.copying import copy_range
from tokpack.files.durable import UNFINISHED, Staged, cannot_write, make_folder_of
from tokpack.files.outputs import remove_partial
from tokpack.indexed.format import (
    Remains,
    bin_path,
    idx_path,
    index_chunks,
    index_remains,
    storage_dtype,
)
from tokpack.indexed.manifest import (
    Digested,
    Manifest,
    checksum_of,
    digest_file,
    has_digest,
    manifest_path,
)
from tokpack.indexed.prefix import prefix_of
from tokpack.indexed.shard import map_file
from tokpack.indexed.trace import trace_path
from tokpack.operations.rebuild import Case, Rebuilt, candidates
from tokpack.operations.verify import file_size, verify
from tokpack.stores import refuse
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from typing import Unpack

    import numpy.typing as npt

    from tokpack.tokenizers import TokenizerFiles


@dataclass(frozen=True)
class RepairReport:
    """What was rebuilt, from what, and what the rebuilt dataset lacks.

    ``fault`` is what was wrong; ``exact`` whether the index is, byte for byte, the one that the
    manifest describes; ``linked`` whether the new .bin is a hard link of the old one.
    """

    prefix: str
    output: str
    fault: str
    method: str
    documents: int
    sequences: int
    tokens: int
    exact: bool
    linked: bool
    notes: tuple[str, ...]


def repair(
    prefix: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    eod: int | None = None,
    dtype: npt.DTypeLike | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> RepairReport:
    """Rebuild the missing or broken .idx of ``prefix``, as the new dataset ``output``.

    Nothing of the old dataset is changed; the new .bin is a hard link where that can be. The
    index is made from, in this order: the old index, where its lengths add up to the .bin; and
    ``eod``, at which documents end. ``eod`` and ``dtype`` are the manifest's, or the old index's,
    where they are None; a tokenizer, named as for load_tokenizer, gives an ``eod`` too. A manifest
    also decides which rebuilt index is the right one.

    UsageError where nothing is broken, or where ``eod`` or ``dtype`` are needed and not known;
    FormatError where an index does not help, because the .bin is what is broken; OutputError
    where ``output`` exists or cannot be written.
    """
    old, new = prefix_of(prefix), os.fsdecode(output)
    refuse([old, new], "a repair")
    if any(tokenizer.values()):
        own = load_tokenizer(**tokenizer).eod_id
        eod = own if eod is None else eod
    for last in (idx_path(new), manifest_path(new)):
        remove_partial([bin_path(new), trace_path(new), idx_path(new), last])
    _check_new(new)
    case = _examine(old, eod, dtype)
    chosen, exact = _choose(case)
    notes = [*case.notes, *chosen.notes, *_differences(case, chosen, exact=exact)]
    linked, kept = _write(case, chosen, new, exact=exact)
    if case.manifest is not None and not kept:
        notes.append("the new dataset has no manifest: the old one no longer describes it")
    return RepairReport(
        prefix=old,
        output=new,
        fault=case.fault,
        method=chosen.method,
        documents=len(chosen.doc_idx) - 1,
        sequences=len(chosen.lengths),
        tokens=case.tokens,
        exact=exact,
        linked=linked,
        notes=tuple(notes),
    )


def _check_new(prefix: str) -> None:
    for path in (bin_path(prefix), idx_path(prefix), manifest_path(prefix), trace_path(prefix)):
        if os.path.lexists(path):
            raise OutputError(f"{path}: exists: a repair writes new files only; name another")


def _examine(prefix: str, eod: int | None, dtype: npt.DTypeLike | None) -> Case:
    manifest = _manifest(prefix)
    if manifest is not None and manifest.pieces is not None:
        raise UsageError(f"{prefix}: a virtual dataset has no index: repair its pieces")
    size = file_size(bin_path(prefix))
    if manifest is not None and eod is None:
        eod = manifest.appended_eod
    remains, digest = _read_remains(idx_path(prefix), manifest)
    fault = _fault(prefix, eod)
    if not fault:
        raise UsageError(f"{prefix}: nothing to repair: the index is whole and fits the .bin")
    if manifest and digest == checksum_of(manifest.idx) and size == manifest.bin["bytes"]:
        raise FormatError(
            f"{fault}; the index is the one that {manifest_path(prefix)} describes, so a new one "
            "does not help: encode the text again"
        )
    chosen = _choose_dtype(prefix, manifest, remains, dtype)
    if eod is not None and not np.iinfo(chosen).min <= eod <= np.iinfo(chosen).max:
        raise UsageError(f"EOD is {eod}, which {chosen}, the dtype of the ids, cannot hold")
    notes = []
    if rest := size % chosen.itemsize:
        notes.append(f"the .bin ends inside a token ({rest} of {chosen.itemsize} bytes): left out")
    if any(part.modes for part in remains):
        notes.append("the modes of a multimodal dataset are left out")
    tokens = size // chosen.itemsize
    whole = manifest is not None and size == manifest.bin["bytes"]
    if manifest is not None and tokens != manifest.tokens:
        notes.append(f"the .bin has {tokens} tokens, the manifest says {manifest.tokens}")
    return Case(prefix, fault, manifest, remains, whole, chosen, eod, tokens, digest, tuple(notes))


def _manifest(prefix: str) -> Manifest | None:
    """The manifest; None where it is broken as well, and then of no use."""
    try:
        manifest = Manifest.find(prefix)
        if manifest is not None:
            storage_dtype(manifest.dtype)
    except (FormatError, TypeError, UsageError):
        return None
    return manifest


def _fault(prefix: str, eod: int | None) -> str:
    """The first fault of the dataset, "" where there is none."""
    try:
        verify(prefix, eod=eod)
    except (FormatError, InputError) as error:
        return str(error)
    return ""


def _read_remains(path: str, manifest: Manifest | None) -> tuple[tuple[Remains, ...], str]:
    """What the old index still says, and its checksum."""
    try:
        buffer, _ = map_file(path)
        digest = digest_file(path)["xxh3_128"]
    except InputError:
        return (), ""
    counts = (None,) if manifest is None else (manifest.sequences, None)
    return tuple(index_remains(buffer, count) for count in counts), digest


def _choose_dtype(
    prefix: str,
    manifest: Manifest | None,
    remains: tuple[Remains, ...],
    dtype: npt.DTypeLike | None,
) -> np.dtype[Any]:
    said = None if manifest is None else storage_dtype(manifest.dtype)
    if dtype is not None:
        asked = storage_dtype(dtype)
        if said is not None and asked != said:
            raise UsageError(f"{manifest_path(prefix)}: dtype is {said}, not {asked} as asked")
        return asked
    known = said or next((part.dtype for part in remains), None)
    if known is None:
        raise UsageError(
            f"{prefix}: the dtype of the ids is not known: there is neither a manifest nor the "
            "head of an index; give it (--dtype uint16 below 65500 tokens in the vocabulary, else "
            "usually int32)"
        )
    return known


def _choose(case: Case) -> tuple[Rebuilt, bool]:
    """The best index, and whether it is the one that the manifest describes."""
    manifest = case.manifest
    best: tuple[bool, Rebuilt] | None = None
    for rebuilt in candidates(case):
        digest = rebuilt.digest(case.dtype)
        if manifest is not None and digest == checksum_of(manifest.idx):
            return rebuilt, True
        if digest == case.digest:  # the one that was found faulty
            continue
        differs = bool(manifest and _differences(case, rebuilt, exact=False))
        if best is None or (best[0] and not differs):
            best = differs, rebuilt
        if not differs:
            break
    if best is None:
        raise FormatError(f"{case.fault}; nothing is left to rebuild it from: {_lacking(case)}")
    return best[1], False


def _lacking(case: Case) -> str:
    if not case.tokens:
        return "the .bin has no token"
    if case.manifest is not None and case.manifest.options.get("append_eod") is False:
        return "documents were encoded without an EOD, so nothing tells where they end"
    return "give the EOD id (--eod ID)"


def _differences(case: Case, rebuilt: Rebuilt, *, exact: bool) -> list[str]:
    """What the manifest says and the rebuilt index does not have."""
    manifest = case.manifest
    if manifest is None or exact:
        return []
    kept = manifest.kept_empty
    found = []
    documents = len(rebuilt.doc_idx) - 1
    if documents != manifest.documents + kept:
        if documents > manifest.documents + kept:
            why = "EODs inside documents cut these"
        elif case.tokens < manifest.tokens:
            why = "the others are not in the .bin"
        else:
            why = "empty ones leave no trace, and those without an EOD join the next"
        found.append(f"{documents} documents, the manifest says {manifest.documents + kept}: {why}")
    sequences = len(rebuilt.lengths)
    one_each = sequences == documents and manifest.sequences == manifest.documents
    if sequences != manifest.sequences and not one_each:
        found.append(
            f"{sequences} sequences, the manifest says {manifest.sequences}: "
            "the bounds inside documents are lost"
        )
    return found


def _write(case: Case, rebuilt: Rebuilt, output: str, *, exact: bool) -> tuple[bool, bool]:
    """Write the new dataset; whether its .bin is a link, and whether it has a manifest."""
    make_folder_of(output)
    with Staged() as staged:
        size = case.tokens * case.dtype.itemsize
        linked = _link_or_copy(staged, bin_path(case.prefix), size, bin_path(output))
        manifest = _kept_manifest(case, rebuilt, bin_path(output) + UNFINISHED)
        trace, old = manifest.trace if manifest else None, trace_path(case.prefix)
        if trace and exact and os.path.exists(old) and has_digest(old, trace):
            _link_or_copy(staged, old, trace["bytes"], trace_path(output))
        else:
            trace = None
        index = Digested(index_chunks(case.dtype, rebuilt.lengths, rebuilt.doc_idx))
        staged.write(idx_path(output), index)
        if manifest:
            manifest = replace(manifest, idx=index.digest, trace=trace)
            staged.write(manifest_path(output), manifest.chunks())
        _check_new(output)  # something may have come meanwhile
        staged.commit()
    return linked, manifest is not None


def _link_or_copy(staged: Staged, old: str, size: int, path: str) -> bool:
    """Make the first ``size`` bytes of a file a new one; whether it is a link."""
    old = os.path.realpath(old)  # the file, not a link to it
    if size == file_size(old) and staged.link(old, path):
        return True
    with cannot_write(path), open(old, "rb") as source:
        copy_range(source.fileno(), staged.create(path).fileno(), 0, size, 0)
    return False


def _kept_manifest(case: Case, rebuilt: Rebuilt, new_bin: str) -> Manifest | None:
    """The old manifest, where all that it says of the tokens holds for the new dataset."""
    manifest = case.manifest
    if manifest is None or _differences(case, rebuilt, exact=False):
        return None
    return manifest if has_digest(new_bin, manifest.bin) else None
