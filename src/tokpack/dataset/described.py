"""The tokenizer of a dataset, as described in its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokpack.dataset.dataset import MMapIndexedDataset


def check_tokenizers(
    named: Iterable[tuple[str, Mapping[str, Any] | None]], advice: str = "encode one again"
) -> None:
    """Raise UsageError for different tokenizers, given with the names of their datasets."""
    first: tuple[str, Mapping[str, Any]] | None = None
    for name, tokenizer in named:
        if tokenizer and tokenizer.get("sha256"):
            first = first or (name, tokenizer)
            if tokenizer["sha256"] != first[1]["sha256"]:
                raise UsageError(
                    f"{first[0]} was made with the tokenizer {_words(first[1])}, {name} with "
                    f"{_words(tokenizer)}: their ids mean different things; {advice}"
                )


def _words(tokenizer: Mapping[str, Any]) -> str:
    name, eod = tokenizer.get("name", "unknown"), tokenizer.get("eod_id")
    return f"{name} ({tokenizer['sha256'][:12]}, EOD {eod})"


class DatasetTokenizer(dict[str, Any]):
    """The tokenizer of a dataset as the manifest describes it; ``encode`` and ``decode`` load it.

    It is the mapping in the manifest: ``name``, ``kind``, ``sha256``, ``vocab_size``, ``eod_id``,
    ``special_ids`` and more. The tokenizer's files are looked for among the copies that
    ``tokpack.encode`` has kept on this machine, beside the dataset, and at their old place; they
    must have the checksum of those that made the dataset.
    """

    def __init__(
        self,
        described: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        dataset: MMapIndexedDataset | None = None,
    ) -> None:
        super().__init__(described)
        self._dataset = dataset

    def load(self) -> Any:
        """The tokenizer, as ``tokpack.load_tokenizer`` returns it. TokenizerError if not found."""
        if self._dataset is None:
            raise TokenizerError("a description without its dataset: use load_tokenizer(...)")
        return self._dataset.spelling.tokenizer

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no character become U+FFFD.

        TokenizerError if the tokenizer is not found, or has no such id.
        """
        text: str = self.load().decode(ids)
        return text

    def encode(self, text: str, *, special_tokens: str = "auto") -> list[int]:
        """The ids of one text, without an EOD. TokenizerError if the tokenizer is not found."""
        ids: list[int] = self.load().encode(text, special_tokens=special_tokens)
        return ids
