"""Find the tokenizer of a dataset again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import TokenizerError
from tokpack.report.sources import own_manifest
from tokpack.report.spelling import Spelling
from tokpack.stores import is_url
from tokpack.tokenizers import Tokenizer, TokenizerFiles, load_tokenizer
from tokpack.tokenizers.described import load_described

if TYPE_CHECKING:
    from typing import Unpack

    from tokpack.indexed import MMapIndexedDataset

HOW = "give it with --tokenizer, or --vocab-file and --merge-file, as to encode"
_IN_PYTHON = "load one with tokpack.load_tokenizer(...), whose decode takes dataset.document(i)"


class TokenizerLookup(NamedTuple):
    """A tokenizer, or None; ``note`` says what a user should know about that."""

    tokenizer: Tokenizer | None
    note: str


def find_tokenizer(dataset: MMapIndexedDataset, **files: Unpack[TokenizerFiles]) -> TokenizerLookup:
    """Load the tokenizer that is given, else the one that the manifest describes.

    A manifest has the paths and checksums of a tokenizer's files. They are looked for among the
    copies that encode has kept on this machine, beside the dataset, and at their old place; what is
    found must have the checksum. What is given must load: raises TokpackError.
    """
    if any(files.values()):
        tokenizer = load_tokenizer(**files)
        return TokenizerLookup(tokenizer, _difference(dataset, tokenizer))
    try:
        return TokenizerLookup(_own_tokenizer(dataset), "")
    except TokenizerError as error:
        return TokenizerLookup(None, f"{error}; {HOW}")


def spelling_of(dataset: MMapIndexedDataset) -> Spelling:
    """The tokens of a dataset as text, by the tokenizer that its manifest describes.

    TokenizerError, with what to do, where there is none or it is not found.
    """
    try:
        return Spelling(_own_tokenizer(dataset))
    except TokenizerError as error:
        adopted = "" if dataset.manifest else "give it one with tokpack.adopt, or "
        raise TokenizerError(f"{error}; {adopted}{_IN_PYTHON}") from None


def _own_tokenizer(dataset: MMapIndexedDataset) -> Tokenizer:
    manifest, prefix = own_manifest(dataset), dataset.path_prefix
    if manifest is None or not manifest.tokenizer:
        raise TokenizerError(f"no manifest names the tokenizer of {prefix}")
    folder = os.path.dirname(prefix if is_url(prefix) else os.path.abspath(prefix))
    try:
        return load_described(manifest.tokenizer, folder)
    except TokenizerError as error:
        name = str(manifest.tokenizer.get("name", ""))
        raise TokenizerError(f"cannot load the tokenizer {name!r} of {prefix}: {error}") from None


def _difference(dataset: MMapIndexedDataset, tokenizer: Tokenizer) -> str:
    manifest = own_manifest(dataset)
    if manifest is None or not manifest.tokenizer:
        return ""
    described = manifest.tokenizer
    if tokenizer.fingerprint == described.get("sha256"):
        return ""
    return (
        f"{dataset.path_prefix} was made with the tokenizer {str(described.get('name'))!r} of "
        f"{described.get('vocab_size')} ids (sha256 {str(described.get('sha256'))[:12]}); the one "
        f"given has {tokenizer.vocab_size} ids (sha256 {tokenizer.fingerprint[:12]})"
    )
