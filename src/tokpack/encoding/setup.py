"""What turns text into ids: a tokenizer, what frames a document, the type of the ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.encoding.transforms import make_transform
from tokpack.indexed import best_fitting_dtype
from tokpack.indexed.table import import_parquet
from tokpack.tokenizers import Frame, Tokenizer, frame_of, load_tokenizer

if TYPE_CHECKING:
    from tokpack.encoding.options import EncodeOptions


class TokenizerSetup(NamedTuple):
    """What turns text into ids, as it was asked for; ``dtype`` is that of the ids."""

    tokenizer: Tokenizer
    frame: Frame
    dtype: str

    def has_usual_frame(self, options: EncodeOptions) -> bool:
        """Whether nothing but the EOD, if that is asked for, goes around a document."""
        return self.frame == frame_of(self.tokenizer, append_eod=bool(options.append_eod))


def described(options: EncodeOptions, setup: TokenizerSetup) -> dict[str, Any]:
    """What plans and manifests say of the tokenizer."""
    setup.tokenizer.keep_copies()
    entry = setup.tokenizer.describe()
    if not setup.has_usual_frame(options):
        entry["frame"] = setup.frame.to_json()
    return entry


def special_mode(options: EncodeOptions, setup: TokenizerSetup) -> str:
    """What special tokens inside a document become."""
    mode = options.special_tokens
    return mode if mode == "error" else setup.tokenizer.special_mode(mode)


def load_setup(options: EncodeOptions) -> TokenizerSetup:
    """The tokenizer that is asked for. TokenizerError, InputError."""
    make_transform(options)  # what is missing for it is said before anything is begun
    if options.has_table:
        import_parquet()
    tokenizer = load_tokenizer(**options.for_tokenizer)
    frame = frame_of(tokenizer, **options.for_frame)
    dtype: str = options.dtype
    if dtype == "auto":
        dtype = best_fitting_dtype(tokenizer.vocab_size).name
    return TokenizerSetup(tokenizer, frame, dtype)
