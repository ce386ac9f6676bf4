"""Read GPT-2's pair of files: vocab.json (token -> id) and merges.txt (a pair a line, by rank)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from tokpack.errors import TokenizerError
from tokpack.files import foreign
from tokpack.files.foreign import read_whole
from tokpack.tokenizers.spec import (
    AddedToken,
    ByteLevelSpec,
    NotNativeError,
    byte_level_spec,
    check_ids,
    split_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

EOD = "<|endoftext|>"
_FEW = 64  # tokens without a merge, as special ones are, that nobody need hear of
_log = logging.getLogger(__name__)


def read_bytes(path: Path) -> bytes:
    """A tokenizer file, whole. TokenizerError."""
    problem = "cannot read the tokenizer file: "
    return read_whole(path, missing=TokenizerError, wrong=TokenizerError, problem=problem)


def parse_json(raw: bytes, path: Path) -> object:
    """A JSON file of a tokenizer."""
    return foreign.parse_json(raw, path, wrong=TokenizerError)


def parse_vocab(raw: bytes, path: Path) -> dict[str, int]:
    """A flat vocabulary, token -> id, each id once."""
    vocab = parse_json(raw, path)
    if not isinstance(vocab, dict):
        raise TokenizerError(f"{path}: a vocabulary is a JSON object of token: id")
    if "model" in vocab and isinstance(vocab["model"], dict):
        raise TokenizerError(
            f"{path}: this is a tokenizer.json, which needs no merges file: give it alone"
        )
    check_ids(vocab, str(path))
    return vocab


def parse_merges(raw: bytes, path: Path) -> tuple[list[str], list[str]]:
    """Left and right tokens of a merges file, in order."""
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8 at byte {error.start}") from None
    body = text.removesuffix("\n")
    if text.startswith("#version"):
        body = body.partition("\n")[2]
    pairs = split_pairs(body)
    if pairs is None:
        raise _bad_line(text, path)
    return pairs


def _bad_line(text: str, path: Path) -> TokenizerError:
    for number, line in enumerate(text.split("\n"), 1):
        pair = line.split(" ")
        if (len(pair) != 2 or not all(pair)) and not (number == 1 and line.startswith("#version")):
            break
    return TokenizerError(
        f"{path}:{number}: a line of a merges file is two tokens with a blank between them, "
        f"not {line[:80]!r}"
    )


def spec_from_files(
    vocab: Mapping[str, int], pairs: tuple[list[str], list[str]], vocab_path: Path, merge_path: Path
) -> ByteLevelSpec:
    """The native definition; raises TokenizerError when the two files do not belong together."""
    added = (AddedToken(EOD, vocab[EOD], True, False),) if EOD in vocab else ()
    try:
        return byte_level_spec(vocab, pairs, added, pattern="gpt2")
    except NotNativeError as error:
        raise TokenizerError(
            f"{vocab_path} with {merge_path}: {error}: text would be lost; give the two files of "
            "one byte-level tokenizer"
        ) from None


def warn_of_unreachable(spec: ByteLevelSpec, vocab_path: Path, merge_path: Path) -> None:
    """Tell of tokens that no text becomes, where they are many: the merges may be cut short."""
    is_made = np.zeros(len(spec.vocab), bool)
    is_made[spec.merges[:, 2]] = True
    lost = sum(len(spec.vocab[id_] or b"") > 1 for id_ in np.flatnonzero(~is_made).tolist())
    if lost > max(_FEW, len(spec.vocab) // 100):
        _log.warning(
            "no text becomes %s of the %s tokens of %s, which %s does not make: are these the two "
            "files of one tokenizer?",
            *(f"{lost:,}", f"{len(spec.vocab):,}", vocab_path, merge_path),
        )
