"""Find the tokenizer of a dataset again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from tokpack.errors import StoreError, TokpackError
from tokpack.report.sources import own_manifest
from tokpack.stores import is_file, is_url
from tokpack.tokenizers import Tokenizer, TokenizerFiles, load_tokenizer
from tokpack.tokenizers.described import arguments_of

if TYPE_CHECKING:
    from typing import Unpack

    from tokpack.indexed import MMapIndexedDataset

HOW = "give it with --tokenizer, or --vocab-file and --merge-file, as to encode"


class Found(NamedTuple):
    """A tokenizer, or None; ``note`` says what a user should know about that."""

    tokenizer: Tokenizer | None
    note: str


def find_tokenizer(dataset: MMapIndexedDataset, **given: Unpack[TokenizerFiles]) -> Found:
    """Load the tokenizer that is given, else the one that the manifest names.

    A manifest has the tokenizer's name or path as it was given to encode, not its files: a path is
    tried as it is and beside the dataset, merges are looked for beside their vocabulary, and what
    is found must have the checksum of the manifest. What is given must load: raises TokpackError.
    """
    if any(given.values()):
        tokenizer = load_tokenizer(**given)
        return Found(tokenizer, _difference(dataset, tokenizer))
    manifest, prefix = own_manifest(dataset), dataset.path_prefix
    if manifest is None or not manifest.tokenizer:
        return Found(None, f"no manifest names the tokenizer of {prefix}: {HOW}")
    made = manifest.tokenizer
    wanted, reason = str(made.get("name", "")), "it is not at its old place"
    for request in _requests(wanted, made, prefix):
        try:
            tokenizer = load_tokenizer(**request, eod_token=manifest.token_fact("eod_id"))
        except (TokpackError, OSError) as error:
            reason = str(error)
            continue
        if tokenizer.fingerprint == made.get("sha256"):
            return Found(tokenizer, "")
        reason = "what is there now is another one (its sha256 differs)"
    return Found(None, f"cannot load the tokenizer {wanted!r} of {prefix}: {reason}; {HOW}")


def _requests(name: str, made: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Arguments of load_tokenizer that may give the tokenizer again, the likely ones first."""
    folder = os.path.dirname(prefix if is_url(prefix) else os.path.abspath(prefix))
    beside = os.path.join(folder, os.path.basename(name))
    paths = [path for path in dict.fromkeys((name, beside)) if _is_file(path)]
    if not paths and os.path.exists(name) and not os.path.isdir(name):
        return []  # a device or a pipe
    arguments, kind = arguments_of(made), str(made.get("kind", ""))
    if arguments:
        return [{"tokenizer": path, **arguments} for path in paths or (name,)]
    if kind == "whitespace vocabulary":
        return [{"vocab_file": path, "tokenizer_type": "Whitespace"} for path in paths]
    if kind == "SentencePiece":
        return [
            {"tokenizer_model": path, "tokenizer_type": "SentencePieceTokenizer"} for path in paths
        ]
    pairs = [
        {"vocab_file": path, "merge_file": merges} for path in paths for merges in _merges(path)
    ]
    # transformers' GPT-2 differs from Megatron's in special tokens only, and in its checksum.
    typed = [{**pair, "tokenizer_type": "HFGPT2Tokenizer"} for pair in pairs]
    plain = [{"tokenizer": path} for path in paths or (name,)]
    return [*pairs, *typed, *plain]


def _is_file(path: str) -> bool:
    try:
        return is_file(path)
    except StoreError:  # a dataset can be looked at without its tokenizer
        return False


def _merges(vocab: str) -> list[str]:
    """The merges that lie beside a vocabulary of GPT-2's form."""
    folder, name = os.path.split(vocab)
    stem = os.path.splitext(name)[0]
    names = ("merges.txt", stem.replace("vocab", "merges") + ".txt", "vocab.bpe")
    paths = [os.path.join(folder, name) for name in dict.fromkeys(names)]
    return [path for path in paths if _is_file(path)]


def _difference(dataset: MMapIndexedDataset, tokenizer: Tokenizer) -> str:
    manifest = own_manifest(dataset)
    if manifest is None:
        return ""
    made = manifest.tokenizer
    if tokenizer.fingerprint == made.get("sha256"):
        return ""
    return (
        f"{dataset.path_prefix} was made with the tokenizer {str(made.get('name'))!r} of "
        f"{made.get('vocab_size')} ids (sha256 {str(made.get('sha256'))[:12]}); the one given has "
        f"{tokenizer.vocab_size} ids (sha256 {tokenizer.fingerprint[:12]})"
    )
