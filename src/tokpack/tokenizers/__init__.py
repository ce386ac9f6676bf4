"""Text to ids: the native byte-level BPE, Hugging Face tokenizers, SentencePiece, words."""

from typing import TYPE_CHECKING

from tokpack.tokenizers.accelerated import AcceleratedTokenizer as AcceleratedTokenizer
from tokpack.tokenizers.base import DocumentsError as DocumentsError
from tokpack.tokenizers.base import Encoded as Encoded
from tokpack.tokenizers.base import Encoder as Encoder
from tokpack.tokenizers.base import Tokenizer as Tokenizer
from tokpack.tokenizers.base import UnencodableError as UnencodableError
from tokpack.tokenizers.base import borrowed as borrowed
from tokpack.tokenizers.check import first_documents as first_documents
from tokpack.tokenizers.check import library_of as library_of
from tokpack.tokenizers.check import self_check as self_check
from tokpack.tokenizers.exported import chat_files as chat_files
from tokpack.tokenizers.exported import files_of as files_of
from tokpack.tokenizers.folder import beside as beside
from tokpack.tokenizers.frame import EOD_NAMES as EOD_NAMES
from tokpack.tokenizers.frame import Frame as Frame
from tokpack.tokenizers.frame import find_bos as find_bos
from tokpack.tokenizers.frame import frame_of as frame_of
from tokpack.tokenizers.frame import is_framed_elsewhere as is_framed_elsewhere
from tokpack.tokenizers.hub import hub_cache as hub_cache
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer as HuggingFaceTokenizer
from tokpack.tokenizers.load import TOKENIZER_PATHS as TOKENIZER_PATHS
from tokpack.tokenizers.load import TokenizerFiles as TokenizerFiles
from tokpack.tokenizers.load import count_ids as count_ids
from tokpack.tokenizers.load import load_described as load_described
from tokpack.tokenizers.load import load_tokenizer as load_tokenizer
from tokpack.tokenizers.load import named_tokenizers as named_tokenizers
from tokpack.tokenizers.load import path_of as path_of
from tokpack.tokenizers.load import tokenizer_of as tokenizer_of
from tokpack.tokenizers.marking import MarkedIds as MarkedIds
from tokpack.tokenizers.marking import MarkingEncoder as MarkingEncoder
from tokpack.tokenizers.native import NativeTokenizer as NativeTokenizer
from tokpack.tokenizers.patterns import pre_tokenizer_of as pre_tokenizer_of
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer as SentencePieceTokenizer
from tokpack.tokenizers.train import train_bpe as train_bpe
from tokpack.tokenizers.train import train_whitespace_vocab as train_whitespace_vocab
from tokpack.tokenizers.words import EOD as EOD

if TYPE_CHECKING:
    from tokpack.tokenizers.load import TokenizerLike as TokenizerLike
