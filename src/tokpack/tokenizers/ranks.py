"""Vocabularies of ranks: tiktoken's files, a token in base64 and its rank on each line."""

from __future__ import annotations

import binascii
import re
from typing import TYPE_CHECKING

from tokpack import _core
from tokpack.display import brief
from tokpack.errors import TokenizerError
from tokpack.tokenizers.spec import AddedToken, ByteLevelSpec, missing_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_TOKEN = 4096  # bytes
_MAX_DIGITS = 9  # of a rank
_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} [0-9]+\s")


def is_ranks(raw: bytes) -> bool:
    """Whether a file begins with a line as tiktoken's files have."""
    return _LINE.match(raw[: 2 * MAX_TOKEN] + b"\n") is not None


def parse_ranks(raw: bytes, path: Path) -> dict[bytes, int]:
    """Token -> rank, each once. TokenizerError names the line that is wrong."""
    ranks: dict[bytes, int] = {}
    lines: dict[int, int] = {}  # rank -> its line
    for number, line in enumerate(raw.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            written, digits = fields
            token = binascii.a2b_base64(written, strict_mode=True)
        except ValueError as error:
            reason = "a line is a token in base64 and its rank"
            if isinstance(error, binascii.Error):
                reason = f"not base64 ({error})"
            raise _wrong(path, number, line, reason) from None
        if not digits.isdigit() or len(digits) > _MAX_DIGITS:
            raise _wrong(path, number, line, "the rank is not a whole number from 0")
        rank = int(digits)
        if not token or len(token) > MAX_TOKEN:
            reason = f"a token has 1 to {MAX_TOKEN} bytes, not {len(token):,}"
            raise _wrong(path, number, line, reason)
        if token in ranks or rank in lines:
            before = lines[ranks.get(token, rank)]
            what = "token" if token in ranks else "rank"
            raise _wrong(path, number, line, f"line {before} has the same {what}")
        ranks[token] = rank
        lines[rank] = number
    if not ranks:
        raise TokenizerError(f"{path}: the file has no token")
    return ranks


def _wrong(path: Path, number: int, line: bytes, reason: str) -> TokenizerError:
    return TokenizerError(f"{path}:{number}: {reason}: {brief(line[:80])[1:]}")


def by_rank(
    ranks: Mapping[bytes, int], special: Mapping[str, int], path: Path
) -> list[bytes | None]:
    """Tokens in the order of their ranks, None where a special token is.

    TokenizerError for a rank that neither has.
    """
    taken = set(ranks.values()) | set(special.values())
    size = max(ranks.values()) + 1
    if len(taken) < size or len(ranks) < size:
        missing = next((rank for rank in range(size) if rank not in taken), None)
        if missing is not None:
            raise TokenizerError(
                f"{path}: no line has the rank {missing}, and the highest is {size - 1}: "
                "a part of the file is missing"
            )
    tokens: list[bytes | None] = [None] * size
    for token, rank in ranks.items():
        tokens[rank] = token
    return tokens


def spec_of_ranks(
    tokens: Sequence[bytes | None],
    special: Mapping[str, int],
    path: Path,
    *,
    nfc: bool = False,
    first_id: int = 0,
) -> ByteLevelSpec:
    """The definition of a vocabulary, without a pattern; rank r has the id ``first_id + r``.

    ``special`` has ids, each of which no rank has. A piece of text that is a token becomes it, as
    in tiktoken, also where merging would not make it.
    """
    missing = missing_bytes(tokens)
    if missing:
        raise TokenizerError(
            f"{path}: no token for the byte 0x{missing[0]:02X} ({len(missing)} bytes are "
            "missing): text would be lost"
        )
    try:
        merges, unmergeable = _core.ranked_merges(tokens)
    except ValueError as error:
        raise TokenizerError(f"{path}: {error}") from None
    size = max([first_id + len(tokens) - 1, *special.values()]) + 1
    vocab: list[bytes | None] = [None] * size
    vocab[first_id : first_id + len(tokens)] = tokens
    return ByteLevelSpec(
        vocab=vocab,
        merges=merges + first_id,
        pattern="none",
        added=tuple(AddedToken(text, token_id, True, False) for text, token_id in special.items()),
        nfc=nfc,
        ignore_merges=bool(unmergeable),
    )
