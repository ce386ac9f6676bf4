"""Text to ids: the native byte-level BPE, Hugging Face tokenizers, SentencePiece, words."""

from typing import TYPE_CHECKING

from tokpack.tokenizers.accelerated import AcceleratedTokenizer
from tokpack.tokenizers.base import (
    DocumentsError,
    Encoded,
    Encoder,
    Tokenizer,
    UnencodableError,
    borrowed,
)
from tokpack.tokenizers.check import first_documents, library_of, self_check
from tokpack.tokenizers.exported import chat_files, files_of
from tokpack.tokenizers.folder import beside
from tokpack.tokenizers.frame import EOD_NAMES, Frame, find_bos, frame_of, is_framed_elsewhere
from tokpack.tokenizers.hub import hub_cache
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.load import (
    TOKENIZER_PATHS,
    TokenizerFiles,
    count_ids,
    load_described,
    load_tokenizer,
    named_tokenizers,
    path_of,
    tokenizer_of,
)
from tokpack.tokenizers.marking import MarkedIds, MarkingEncoder
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.patterns import pre_tokenizer_of
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from tokpack.tokenizers.train import train_bpe, train_whitespace_vocab
from tokpack.tokenizers.words import EOD

if TYPE_CHECKING:
    from tokpack.tokenizers.load import TokenizerLike as TokenizerLike

__all__ = [
    "EOD",
    "EOD_NAMES",
    "TOKENIZER_PATHS",
    "AcceleratedTokenizer",
    "DocumentsError",
    "Encoded",
    "Encoder",
    "Frame",
    "HuggingFaceTokenizer",
    "MarkedIds",
    "MarkingEncoder",
    "NativeTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "TokenizerFiles",
    "UnencodableError",
    "beside",
    "borrowed",
    "chat_files",
    "count_ids",
    "files_of",
    "find_bos",
    "first_documents",
    "frame_of",
    "hub_cache",
    "is_framed_elsewhere",
    "library_of",
    "load_described",
    "load_tokenizer",
    "named_tokenizers",
    "path_of",
    "pre_tokenizer_of",
    "self_check",
    "tokenizer_of",
    "train_bpe",
    "train_whitespace_vocab",
]
