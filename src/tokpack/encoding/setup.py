"""What turns text into ids: the tokenizer, the frame of a document, the dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.dataset import best_fitting_dtype
from tokpack.dataset.table import import_parquet
from tokpack.encoding.makers import transform_of
from tokpack.tokenizers import Frame, Tokenizer, frame_of, load_tokenizer

if TYPE_CHECKING:
    from tokpack.encoding.options import EncodeOptions
    from tokpack.tokenizers import Encoder


@dataclass
class TokenizerSetup:
    """The tokenizer and frame of a request, and the ``dtype`` of the ids.

    A process that makes several shards has one for all of them.
    """

    tokenizer: Tokenizer
    frame: Frame
    dtype: str
    is_checked: bool = False  # by the self-check, or, if it is not native, its speed was told
    _encoder: Encoder | None = None

    def encoder(self, options: EncodeOptions) -> Encoder:
        """The encoder of documents, for one thread; built on first use."""
        if self._encoder is None:
            self._encoder = self.tokenizer.encoder(
                dtype=self.dtype,
                special_tokens=options.special_tokens,
                # The frame goes around the whole document, not around each sentence.
                frame=Frame() if options.split_sentences else self.frame,
            )
        return self._encoder

    def __getstate__(self) -> dict[str, Any]:  # another process builds its own encoder
        return {**self.__dict__, "_encoder": None}

    def has_usual_frame(self, options: EncodeOptions) -> bool:
        """Whether documents get nothing but the EOD, if requested."""
        return self.frame == frame_of(self.tokenizer, append_eod=bool(options.append_eod))


def described(options: EncodeOptions, setup: TokenizerSetup) -> dict[str, Any]:
    """What plans and manifests say of the tokenizer."""
    setup.tokenizer.keep_copies()
    entry = setup.tokenizer.describe()
    if not setup.has_usual_frame(options):
        entry["frame"] = setup.frame.to_json()
    return entry


def load_setup(options: EncodeOptions) -> TokenizerSetup:
    """The tokenizer of a request, loaded, with its frame. TokenizerError, InputError."""
    transform_of(options)  # raises before any work if a library is missing
    if options.has_table:
        import_parquet()
    tokenizer = load_tokenizer(**options.taken_by("load_tokenizer"))
    frame = frame_of(tokenizer, **options.taken_by("frame_of"))
    dtype: str = options.dtype
    if dtype == "auto":
        dtype = best_fitting_dtype(tokenizer.vocab_size).name
    return TokenizerSetup(tokenizer, frame, dtype)
