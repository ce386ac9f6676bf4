"""Give a dataset a table of its documents, and a dataset of another program also a manifest."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack.dataset.dataset import MMapIndexedDataset
from tokpack.dataset.format import bin_path, document_ends, idx_path
from tokpack.dataset.manifest import (
    MANIFEST,
    FileDigest,
    Manifest,
    PieceSums,
    digest_file,
    manifest_path,
    plain_facts,
    write_digested,
)
from tokpack.dataset.mapped import ByteBlock, scan
from tokpack.dataset.outputs import TABLE, NewFiles
from tokpack.dataset.table import (
    array_of,
    array_of_text,
    import_parquet,
    table_chunks,
    table_metadata,
    table_path,
    table_schema,
    token_digests,
)
from tokpack.dataset.verify import TokenCheck
from tokpack.errors import FormatError, OutputError, TokenizerError, UsageError, option
from tokpack.progress import ProgressStage, with_bar
from tokpack.storage import exists, near
from tokpack.storage.disk.blocks import block_sums, checksum_of_sums
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    import numpy.typing as npt

    from tokpack.dataset.shards import Shard
    from tokpack.progress import Show
    from tokpack.tokenizers import Tokenizer, TokenizerFiles

    Int64s = npt.NDArray[np.int64]

_ROWS = 1 << 12  # documents that are hashed at a time


@with_bar
def adopt(
    prefix: str | os.PathLike[str],
    *,
    eod_token: str | int | None = None,
    append_eod: bool | None = None,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Manifest:
    """Write PREFIX.docs.parquet for a dataset that has none. Returns its manifest.

    For a dataset of another program PREFIX.json is written too, and its tokenizer must be named as
    for load_tokenizer. Every token is read: ids must be in the vocabulary, and if the first
    document with tokens ends with the EOD, all must, unless ``append_eod`` says otherwise.
    ``eod_token`` is the EOD, if not the usual one. In the table ``source`` is the name of the
    dataset and ``line`` the number of the document, from 1.

    A dataset with a manifest needs no tokenizer; for a virtual one the shards get tables. Then
    ``source`` is the input, if the manifest says which, and ``line`` is null. The original text is
    unknown, so ``bytes`` and ``text_xxh3`` are null. Neither .bin nor .idx is changed. OutputError
    if the dataset has a table, UsageError for a view or a missing tokenizer, FormatError for a
    broken dataset or another tokenizer.
    """
    with MMapIndexedDataset(prefix) as dataset:
        name, manifest = dataset.path_prefix, dataset.manifest
        if manifest:
            if any(tokenizer.values()):
                raise UsageError(
                    f"{name}: its manifest names the tokenizer that made it: leave out "
                    f"{option('tokenizer')}"
                )
            stage = ProgressStage(progress, "adopt", dataset.token_count * dataset.dtype.itemsize)
            _add_tables(dataset, manifest, stage)
            return Manifest.load(name)
        if exists(manifest_path(name)):
            raise OutputError(f"{manifest_path(name)} exists and is not a manifest: move it away")
        if not any(tokenizer.values()):
            raise UsageError(
                "it is not known which tokenizer made the dataset: name it with "
                f"{option('tokenizer')}, or {option('vocab_file')} and {option('merge_file')}"
            )
        loaded = load_tokenizer(**tokenizer, eod_token=eod_token)
        [shard] = dataset.shards()
        shard.validate()
        ends = document_ends(dataset.sizes, dataset.doc_idx)
        has_eod = append_eod
        if has_eod is None:  # the first document with tokens decides
            end = int(ends[np.argmax(ends > 0)])
            has_eod = end > 0 and int(shard.tokens[end - 1 : end][0]) == loaded.eod_id
        if has_eod and loaded.eod_id is None:
            raise TokenizerError(
                f"tokenizer {loaded.name} has no EOD: name it with {option('eod_token')}"
            )
        stage = ProgressStage(progress, "adopt", shard.tokens.nbytes)
        binary = _check(shard, loaded, stage, has_eod=has_eod)
        empty = int(np.count_nonzero(np.diff(ends) == 0))
        counts = {"documents": dataset.documents - empty, "empty": empty}
        options: dict[str, Any] = {"adopted": True, "append_eod": has_eod}
        if empty:
            options["empty"] = "document"  # documents without tokens have an entry in the index
        facts = plain_facts(name, dataset.documents, int(ends[-1]), binary["bytes"]) | counts
        facts["inputs"][0] |= counts
        manifest = Manifest.new(
            facts,
            tokenizer=loaded.describe(),
            options=options,
            sequences=len(dataset),
            tokens=dataset.token_count,
            dtype=str(dataset.dtype),
            bin=binary,
            idx=digest_file(near(idx_path(name))),
        )
        manifest = _write(shard, manifest, _rows(shard, ends, None, None))
    loaded.keep_copies()
    return manifest


def _add_tables(dataset: MMapIndexedDataset, manifest: Manifest, stage: ProgressStage) -> None:
    """Write tables for those shards of a dataset that have none."""
    if dataset.view is not None:
        raise UsageError(
            f"{dataset.path_prefix}: a view has no table of its own: adopt the datasets under it"
        )
    count = 0
    for shard in dataset.shards():
        its_manifest = Manifest.load(shard.prefix) if dataset.records else manifest
        if its_manifest.table is None:
            shard.validate()
            ends = document_ends(shard.index.lengths, shard.index.doc_idx)
            _write(shard, its_manifest, _rows(shard, ends, its_manifest, stage))
            count += 1
    if not count:
        raise OutputError(f"{table_path(dataset.path_prefix)} exists: there is nothing to adopt")


def _write(shard: Shard, manifest: Manifest, rows: Iterator[Any]) -> Manifest:
    """Write the table of a shard and its manifest. Returns the manifest."""
    name = shard.prefix
    outputs = [(table_path(name), TABLE), (manifest_path(name), MANIFEST)]
    # The manifest names no table, so an existing one is left from a stopped run.
    with NewFiles(outputs, [bin_path(name), idx_path(name)], overwrite=True) as new:
        chunks = table_chunks(table_schema({}), rows, table_metadata(manifest.bin))
        table = write_digested(table_path(name), chunks, new.write)
        manifest = replace(manifest, table=table)
        new.write(manifest_path(name), manifest.chunks())
        new.seal()
        shard.check_current("adopted")
        new.publish()
    return manifest


def _check(
    shard: Shard, tokenizer: Tokenizer, stage: ProgressStage, *, has_eod: bool
) -> FileDigest:
    """The checksums of the .bin, from a pass over all tokens. FormatError for a wrong one."""
    after = [tokenizer.eod_id] if has_eod and tokenizer.eod_id is not None else []
    check = TokenCheck(shard, tokenizer.vocab_size, ([], after))

    def look(begin: int, block: ByteBlock) -> tuple[str | None, bytes]:
        return check(begin, block), block_sums(begin, block.data)

    sums = bytearray()
    for _, block, (fault, blocks) in scan(check.path, check.bin_bytes, look):
        if fault is not None:
            allow = ""
            if "EOD" in fault:
                allow = f", or documents need not end with the EOD: {option('append_eod', False)}"
            raise FormatError(f"{fault}: another tokenizer made it{allow}")
        sums += blocks
        stage.add(len(block))
    return FileDigest(bytes=check.bin_bytes, xxh3_blocks=checksum_of_sums(bytes(sums)))


def _rows(
    shard: Shard, ends: Int64s, manifest: Manifest | None, stage: ProgressStage | None
) -> Iterator[Any]:
    """The rows of a shard. FormatError if its .bin has changed since its manifest was written.

    Without a manifest it is from another program: it is its own source, and lines number documents.
    """
    arrow, first, sums = import_parquet(), 0, None
    counts, names = [len(ends) - 1], [os.path.basename(shard.prefix)]
    if manifest:
        sums = PieceSums(bin_path(shard.prefix), manifest.bin)
        counted = ["documents", *(["empty"] if manifest.options.get("empty") == "document" else [])]
        by_input = [sum(entry.get(key, 0) for key in counted) for entry in manifest.inputs]
        if sum(by_input) == len(ends) - 1:
            counts, names = by_input, [str(one.get("name", "?")) for one in manifest.inputs]
    stops, texts = np.cumsum(counts), array_of_text(names[0]) if len(names) == 1 else names
    for table, tokens in _hashed(shard, ends):
        numbers = np.arange(first, first + table.num_rows)
        first += table.num_rows
        sources = np.searchsorted(stops, numbers, side="right").astype(np.int32)
        of_name = arrow.DictionaryArray.from_arrays(array_of(sources), texts)
        lines = arrow.nulls(len(numbers), arrow.int64()) if manifest else array_of(numbers + 1)
        yield arrow.table([of_name, lines, *table.columns], schema=table_schema({}))
        if sums is not None and stage is not None:
            data = np.ascontiguousarray(tokens).view(np.uint8).data
            sums.add(data)
            stage.add(len(data))
    if sums is not None:
        sums.finish()


def _hashed(shard: Shard, ends: Int64s) -> Iterator[tuple[Any, npt.NDArray[Any]]]:
    """The columns that follow from the tokens alone, as Arrow tables, each with its tokens."""
    arrow = import_parquet()
    for first in range(0, len(ends) - 1, _ROWS):
        bounds = ends[first : first + _ROWS + 1]
        spans = np.stack((bounds[:-1], bounds[1:]), axis=1) - bounds[0]
        tokens = shard.tokens[int(bounds[0]) : int(bounds[-1])]
        digests, count = token_digests(tokens, spans), len(spans)
        columns = {
            "bytes": arrow.nulls(count, arrow.int64()),
            "tokens": array_of(np.diff(bounds)),
            "text_xxh3": arrow.nulls(count, arrow.binary(16)),
            "tokens_xxh3": array_of(digests, arrow.binary(16)),
        }
        yield arrow.table(columns), tokens
