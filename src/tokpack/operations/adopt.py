"""Give a dataset of another program a manifest and a table of its documents."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import __version__
from tokpack.errors import FormatError, OutputError, TokenizerError, UsageError, option
from tokpack.files.blocks import block_sums, checksum_of_sums
from tokpack.indexed.dataset import MMapIndexedDataset
from tokpack.indexed.digests import FileDigest, HashingReader, digest_file
from tokpack.indexed.format import bin_path, idx_path
from tokpack.indexed.lengths import document_ends
from tokpack.indexed.manifest import MANIFEST, Manifest, manifest_path, now
from tokpack.indexed.new_files import NewFiles
from tokpack.indexed.outputs import TABLE
from tokpack.indexed.plain import plain_facts
from tokpack.indexed.scan import ByteBlock, scan
from tokpack.indexed.table import import_parquet, table_metadata, table_path, token_digests
from tokpack.indexed.table_writer import table_chunks, table_schema
from tokpack.operations.token_check import TokenCheck
from tokpack.progress import ProgressStage, with_bar
from tokpack.stores import exists, near
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    import numpy.typing as npt

    from tokpack.indexed.shard import Shard
    from tokpack.progress import Show
    from tokpack.tokenizers import Tokenizer, TokenizerFiles

_ROWS = 1 << 12  # documents of the table that are hashed at a time


@with_bar
def adopt(
    prefix: str | os.PathLike[str],
    *,
    eod_token: str | int | None = None,
    append_eod: bool | None = None,
    progress: Show | bool | None = None,
    **tokenizer: Unpack[TokenizerFiles],
) -> Manifest:
    """Write PREFIX.json and PREFIX.docs.parquet for a dataset of another program; gives the former.

    The tokenizer that made the dataset is named as for load_tokenizer. Every token is read: each id
    must be in its vocabulary, and each document that has tokens must end with the EOD if the first
    one does; ``append_eod`` says that they do, or need not. ``eod_token`` is the EOD where it is
    not the usual one. In the table ``source`` is the name of the dataset and ``line`` the number of
    the document, from 1; the text as it was is not known, so ``bytes`` and ``text_xxh3`` are null.
    Neither .bin nor .idx is changed. OutputError where the dataset has a manifest, UsageError
    without a tokenizer, FormatError for a broken dataset, or one that another tokenizer made.
    """
    if not any(tokenizer.values()):
        raise UsageError(
            "which tokenizer made the dataset is not known: name it with "
            f"{option('tokenizer')}, or {option('vocab_file')} and {option('merge_file')}"
        )
    with MMapIndexedDataset(prefix) as dataset:
        name = dataset.path_prefix
        if exists(manifest_path(name)):
            raise OutputError(
                f"{manifest_path(name)} is there: a dataset with a manifest is not adopted, and no "
                "other file is replaced"
            )
        loaded = load_tokenizer(**tokenizer, eod_token=eod_token)
        [shard] = dataset.shards()
        shard.validate()
        ends = document_ends(dataset.sizes, dataset.doc_idx)
        has_eod = _ends_with_eod(shard, ends, loaded) if append_eod is None else append_eod
        if has_eod and loaded.eod_id is None:
            raise TokenizerError(
                f"tokenizer {loaded.name} has no EOD: name it with {option('eod_token')}"
            )
        outputs = [(table_path(name), TABLE), (manifest_path(name), MANIFEST)]
        # What is there can only be a table that a stopped run has left.
        with NewFiles(outputs, [bin_path(name), idx_path(name)], overwrite=True) as new:
            stage = ProgressStage(progress, "adopt", shard.tokens.nbytes)
            binary = _check(shard, loaded, stage, has_eod=has_eod)
            metadata = table_metadata(binary)
            chunks = table_chunks(table_schema({}), _rows(shard, ends, name), metadata)
            table = HashingReader(chunks)
            new.write(table_path(name), table)
            manifest = Manifest(
                tokpack_version=__version__,
                created=now(),
                sequences=len(dataset),
                tokens=dataset.token_count,
                dtype=str(dataset.dtype),
                bin=binary,
                idx=digest_file(near(idx_path(name))),
                table=table.digest,
                **_facts(name, ends, binary, loaded, has_eod=has_eod),
            )
            new.write(manifest_path(name), manifest.chunks())
            new.seal()
            shard.check_current("adopted")
            new.publish()
    loaded.keep_copies()
    return manifest


def _ends_with_eod(shard: Shard, ends: npt.NDArray[np.int64], tokenizer: Tokenizer) -> bool:
    """Whether the first document that has tokens ends with the EOD."""
    if not ends[-1]:
        return False
    end = int(ends[np.argmax(ends > 0)])
    return int(shard.tokens[end - 1 : end][0]) == tokenizer.eod_id


def _check(
    shard: Shard, tokenizer: Tokenizer, stage: ProgressStage, *, has_eod: bool
) -> FileDigest:
    """Read all tokens, once; the checksums of the .bin. FormatError at the first wrong one."""
    after = [tokenizer.eod_id] if has_eod and tokenizer.eod_id is not None else []
    check = TokenCheck(shard, tokenizer.vocab_size, ([], after))

    def look(begin: int, block: ByteBlock) -> tuple[str | None, bytes]:
        return check(begin, block), block_sums(begin, block.data)

    sums = bytearray()
    for _, block, (fault, blocks) in scan(check.path, check.bin_bytes, look):
        if fault is not None:
            allow = ""
            if "EOD" in fault:
                allow = (
                    ", or documents need not end with the EOD: --no-append-eod (append_eod=False)"
                )
            raise FormatError(f"{fault}: another tokenizer made it{allow}")
        sums += blocks
        stage.add(len(block))
    return FileDigest(bytes=check.bin_bytes, xxh3_blocks=checksum_of_sums(bytes(sums)))


def _rows(shard: Shard, ends: npt.NDArray[np.int64], name: str) -> Iterator[Any]:
    """The rows of all documents, as Arrow tables."""
    arrow = import_parquet()
    schema = table_schema({})
    for first in range(0, len(ends) - 1, _ROWS):
        own = ends[first : first + _ROWS + 1]
        spans = np.stack((own[:-1], own[1:]), axis=1) - own[0]
        digests = token_digests(shard.tokens[int(own[0]) : int(own[-1])], spans)
        count = len(spans)
        of_name = arrow.array(np.zeros(count, np.int32))
        columns = {
            "source": arrow.DictionaryArray.from_arrays(of_name, [os.path.basename(name)]),
            "line": arrow.array(np.arange(first + 1, first + count + 1)),
            "bytes": arrow.nulls(count, arrow.int64()),
            "tokens": arrow.array(np.diff(own)),
            "text_xxh3": arrow.nulls(count, arrow.binary(16)),
            "tokens_xxh3": arrow.Array.from_buffers(
                arrow.binary(16), count, [None, arrow.py_buffer(digests)]
            ),
        }
        yield arrow.table(columns, schema=schema)


def _facts(
    name: str,
    ends: npt.NDArray[np.int64],
    binary: FileDigest,
    tokenizer: Tokenizer,
    *,
    has_eod: bool,
) -> dict[str, Any]:
    """The manifest's keys that files do not tell."""
    total, empty = len(ends) - 1, int(np.count_nonzero(np.diff(ends) == 0))
    facts = plain_facts(name, total, int(ends[-1]), binary["bytes"])
    counts = {"documents": total - empty, "empty": empty}
    options: dict[str, Any] = {"adopted": True, "append_eod": has_eod}
    if empty:
        options["empty"] = "document"  # which have an entry in the index
    return {
        **facts,
        **counts,
        "inputs": [{**facts["inputs"][0], **counts}],
        "tokenizer": tokenizer.describe(),
        "options": options,
    }
