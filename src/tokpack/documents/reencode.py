"""Inputs, read and encoded again as the manifest of a dataset says that it was made from them.

Without the parts, pieces and joins of the run that made it. What the encoder gives is decoded and
compared with the text, where a tokenizer loses nothing of it: the encoder that is asked again could
be wrong in the same way.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokpack.encoding.batches import first_batches, without_records
from tokpack.errors import InputError, UsageError
from tokpack.report import find_tokenizer
from tokpack.sources import Part, discover, read
from tokpack.tokenizers import DocumentsError, Frame, frame_of
from tokpack.tokenizers.batch import borrowed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt

    from tokpack.indexed import MMapIndexedDataset
    from tokpack.sources import DocumentBatch, Documents, Source
    from tokpack.tokenizers import Encoded, Encoder, Tokenizer, TokenizerFiles

# Options after which a document is not the text of one record.
_OTHERWISE = ("split_sentences", "ftfy", "where", "map", "chat")


class ReencodedBatch(NamedTuple):
    """Documents of a source and their tokens: document i has those of spans[i], none if empty.

    ``records`` were read for them, ``rejected`` of these can be no document; ``unlike`` are the
    numbers of documents whose tokens are not their text.
    """

    documents: Documents
    ids: npt.NDArray[Any]
    spans: npt.NDArray[np.int64]
    records: int
    rejected: int
    unlike: npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodeRecipe:
    """How texts became the tokens of a dataset."""

    tokenizer: Tokenizer
    frame: Frame
    keys: tuple[str, ...]
    key: str
    special_tokens: str
    max_document_bytes: int
    limits: tuple[int, ...] | None  # records of each input, where not all of them were read

    @classmethod
    def of(cls, dataset: MMapIndexedDataset, **tokenizer: Unpack[TokenizerFiles]) -> EncodeRecipe:
        """What a manifest says. InputError, UsageError where documents are no records' texts."""
        manifest, prefix = dataset.manifest, dataset.path_prefix
        if manifest is None:
            raise InputError(
                f"{prefix}: has no manifest, which says how texts became its tokens: tokpack adopt "
                "gives it one"
            )
        if dataset.view is not None:
            raise UsageError(
                f"{prefix}: is a view, which leaves documents out: compare the datasets of which "
                "it lists documents"
            )
        options: Mapping[str, Any] = manifest.options
        if others := [name for name in _OTHERWISE if options.get(name)]:
            raise UsageError(
                f"{prefix}: was encoded with {', '.join(others)}, so its documents are not the "
                "texts of records: encode the inputs again, and compare the checksums of the "
                "manifests"
            )
        choice = find_tokenizer(dataset, **tokenizer)
        if choice.tokenizer is None:
            raise InputError(choice.note)
        described: Mapping[str, Any] = dataset.tokenizer or {}
        frame = frame_of(choice.tokenizer, append_eod=bool(options.get("append_eod", True)))
        key = str(options.get("key", "text"))
        limits = None
        if options.get("num_docs") is not None:
            limits = tuple(int(entry.get("records", 0)) for entry in manifest.inputs)
        return cls(
            tokenizer=choice.tokenizer,
            frame=Frame.of(described) if "frame" in described else frame,
            keys=tuple(options.get("keys") or (key,)),
            key=key,
            special_tokens=str(options.get("special_tokens", "auto")),
            max_document_bytes=int(options.get("max_document_bytes") or 1 << 30),
            limits=limits,
        )


def inputs_of(
    dataset: MMapIndexedDataset, names: Sequence[str], input_format: str | None
) -> list[Source]:
    """The inputs ``names`` of a dataset, read in a format, or as its manifest says. InputError."""
    manifest = dataset.manifest
    entries = manifest.inputs if manifest else ()
    formats = {entry.get("format") for entry in entries if isinstance(entry, dict)}
    of_all = next(iter(formats)) if formats in ({"file"}, {"text"}) else "auto"
    path = manifest.options.get("json_path") if manifest else None
    return discover(names, input_format=input_format or of_all, json_path=path, pipes=False)


class Reencoder:
    """Reads and encodes parts of sources as a recipe says; in threads."""

    def __init__(self, recipe: EncodeRecipe, sources: Sequence[Source]) -> None:
        self._recipe, self._sources = recipe, sources
        self._bytes = recipe.tokenizer.token_bytes()

    def of(
        self, part: Part, lines: npt.NDArray[np.int64] | None = None
    ) -> Generator[tuple[int, ReencodedBatch]]:
        """The documents of a part, or of some lines, with the numbers of their sources. InputError.

        They are valid until the next ones are asked for.
        """
        recipe = self._recipe
        purpose = Reencoder, recipe.special_tokens, recipe.frame
        with borrowed(recipe.tokenizer, purpose, self._encoder) as encoder:
            for number, one in _alone(part):
                source = self._sources[number]
                limit = recipe.limits[number] if recipe.limits else None
                most = recipe.max_document_bytes
                with closing(read(source, one, recipe.keys, max_document_bytes=most)) as batches:
                    for batch in first_batches(batches, limit) if limit != 0 else ():
                        yield number, self._encoded(batch, encoder, lines)

    def _encoder(self) -> Encoder:
        recipe = self._recipe
        return recipe.tokenizer.encoder(
            dtype="int32", special_tokens=recipe.special_tokens, frame=recipe.frame
        )

    def _encoded(
        self, batch: DocumentBatch, encoder: Encoder, lines: npt.NDArray[np.int64] | None
    ) -> ReencodedBatch:
        documents = batch.documents[self._recipe.key]
        if lines is not None:
            documents = documents.select(np.isin(documents.lines, lines))
        try:
            encoded = encoder.encode(documents.data, documents.spans)
        except DocumentsError as error:
            # By number they are those of this key alone, of the lines that are wanted.
            left = replace(batch, documents={self._recipe.key: documents})
            return self._encoded(without_records(left, documents, error.reasons), encoder, None)
        ends = np.cumsum(encoded.lengths, dtype=np.int64)
        spans = np.stack([ends - encoded.lengths, ends], axis=1)
        unlike = self._unlike(documents, encoded, spans)
        return ReencodedBatch(documents, encoded.ids, spans, batch.records, len(batch.bad), unlike)

    def _unlike(
        self, documents: Documents, encoded: Encoded, spans: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The documents whose tokens, without the frame, are not their text."""
        if self._bytes is None or not len(documents):
            return np.empty(0, np.int64)
        frame, inner = self._recipe.frame, spans.copy()
        inner[encoded.lengths > 0] += [len(frame.before), -len(frame.after)]
        return self._bytes.unlike(encoded.ids, inner, documents.data, documents.spans)


def _alone(part: Part) -> Iterator[tuple[int, Part]]:
    """The sources of a part, and the part of each."""
    if part.kind == "files":
        yield from ((number, Part(number, "whole", 0, 0, 0)) for number in part.sources)
    else:
        yield part.source, part
