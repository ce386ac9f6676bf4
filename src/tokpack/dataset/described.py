"""The tokenizer of a dataset, as described in its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokpack.dataset.dataset import MMapIndexedDataset


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
