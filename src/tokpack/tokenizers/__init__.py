"""Text to ids: the native byte-level BPE, Hugging Face tokenizers, SentencePiece, words."""

from tokpack.tokenizers.accelerated import AcceleratedTokenizer
from tokpack.tokenizers.base import DocumentsError, Encoded, Encoder, Tokenizer, UnencodableError
from tokpack.tokenizers.check import self_check
from tokpack.tokenizers.frame import Frame, frame_of, is_framed_elsewhere
from tokpack.tokenizers.load import TOKENIZER_PATHS, TokenizerFiles, load_tokenizer
from tokpack.tokenizers.marking import MarkedIds, MarkingEncoder
from tokpack.tokenizers.train import train_bpe, train_byte_fallback, train_whitespace_vocab

__all__ = [
    "TOKENIZER_PATHS",
    "AcceleratedTokenizer",
    "DocumentsError",
    "Encoded",
    "Encoder",
    "Frame",
    "MarkedIds",
    "MarkingEncoder",
    "Tokenizer",
    "TokenizerFiles",
    "UnencodableError",
    "frame_of",
    "is_framed_elsewhere",
    "load_tokenizer",
    "self_check",
    "train_bpe",
    "train_byte_fallback",
    "train_whitespace_vocab",
]
