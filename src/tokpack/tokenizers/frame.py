"""The tokens around a document: EOD, BOS, and those of a tokenizer's own post-processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokpack.display import brief, nearest
from tokpack.errors import TokenizerError, TokpackError, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.tokenizers.base import Tokenizer

# The names of end-of-document tokens in published tokenizers, the most specific first.
EOD_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<EOD>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|END_OF_TURN_TOKEN|>",
    "<|im_end|>",
    "[EOS]",
    "<eod>",
)
# The names of beginning-of-document tokens, which are looked for only among special tokens.
BOS_NAMES = (
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<s>",
    "<bos>",
    "<|bos|>",
    "<BOS_TOKEN>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "[BOS]",
)
# The tokenizer types of other programs that put the tokens of its post-processor around a text.
_ADDING_TYPES = ("hftokenizer", "huggingfacetokenizer", "pretrainedfromhf")
_WORDS = {"EOD": "end-of-document", "BOS": "beginning-of-document"}
_NAMED = 6  # tokens in a message
FRAMED_BY_HAND = (
    f"leave out {option('add_special_tokens', True)}, and use {option('prepend_bos', True)} and "
    f"{option('append_eod', True)}"
)
_DIGITS = 19  # a text of fewer digits is an id


@dataclass(frozen=True)
class Frame:
    """The ids before and after every document that has a token of its own."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def to_json(self) -> dict[str, list[int]]:
        """The form of a manifest."""
        return {"before": list(self.before), "after": list(self.after)}

    @classmethod
    def of(cls, described: Mapping[str, Any] | None) -> Frame:
        """The frame in a manifest's entry of a tokenizer, or an empty one."""
        entry = (described or {}).get("frame") or {}
        return cls(tuple(entry.get("before", ())), tuple(entry.get("after", ())))


def frame_of(
    tokenizer: Tokenizer,
    *,
    append_eod: bool,
    prepend_bos: bool = False,
    bos_token: str | int | None = None,
    add_special_tokens: bool = False,
) -> Frame:
    """The tokens around each document. A token that the post-processor adds is not added twice.

    Raises TokenizerError if there is no such token.
    """
    added = tokenizer.special_frame() if add_special_tokens else Frame()
    before, after = added.before, added.after
    if prepend_bos or bos_token is not None:
        bos = _bos_of(tokenizer) if bos_token is None else token_id(tokenizer, bos_token, "BOS")
        before = before if before[:1] == (bos,) else (bos, *before)
    if append_eod:
        eod = eod_of(tokenizer)
        after = after if after[-1:] == (eod,) else (*after, eod)
    return Frame(before, after)


def is_framed_elsewhere(tokenizer: Tokenizer, tokenizer_type: str | None) -> bool:
    """Whether the program with this type would add special tokens to a text by default."""
    if (tokenizer_type or "").lower() not in _ADDING_TYPES:
        return False
    try:
        return tokenizer.special_frame() != Frame()
    except TokenizerError:  # it adds more than tokens around a text
        return True


def eod_of(tokenizer: Tokenizer) -> int:
    """The end-of-document token. TokenizerError if the tokenizer has none."""
    if tokenizer.eod_id is None:
        advice = f", or append none with {option('append_eod', False)}"
        raise TokenizerError(_unnamed(tokenizer, "EOD") + advice)
    return tokenizer.eod_id


def find_eod(tokenizer: Tokenizer, token: str | int | None) -> int | None:
    """The id of the end-of-document token: of the requested one, or the first of EOD_NAMES, or
    None.
    """
    if token is not None:
        return token_id(tokenizer, token, "EOD")
    ids = map(tokenizer.token_to_id, EOD_NAMES)
    return next((one for one in ids if one is not None), None)


def find_bos(tokenizer: Tokenizer) -> str | None:
    """The special token that begins a document: the first of BOS_NAMES that exists, or None."""
    return next((name for name in BOS_NAMES if name in tokenizer.special_ids), None)


def _bos_of(tokenizer: Tokenizer) -> int:
    name = find_bos(tokenizer)
    if name is None:
        raise TokenizerError(_unnamed(tokenizer, "BOS"))
    return tokenizer.special_ids[name]


def token_id(tokenizer: Tokenizer, token: str | int, what: str) -> int:
    """The id of a token given by its text, or by its id in digits.

    ``what`` is what it is used as, EOD or BOS. TokenizerError if there is no such token.
    """
    text = str(token)
    if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
        number = tokenizer.token_to_id(text)
        if number is None:
            raise TokenizerError(
                f"tokenizer {tokenizer.name} has no token {brief(text)} to be its {what}"
                f"{_as_text(tokenizer, text)}; {_advice(tokenizer, what, text)}"
            )
        return number
    try:
        tokenizer.decode_bytes([int(text)])
    except TokenizerError as error:
        raise TokenizerError(f"{error}, so it cannot be its {what}") from None
    return int(text)


def _unnamed(tokenizer: Tokenizer, what: str) -> str:
    return (
        f"tokenizer {tokenizer.name} has no {_WORDS[what]} token that is known by its name: "
        f"{_advice(tokenizer, what, '')}"
    )


def _advice(tokenizer: Tokenizer, what: str, text: str) -> str:
    """What to do, with the tokens that may be meant."""
    names = [name for name in EOD_NAMES if tokenizer.token_to_id(name) is not None]
    names = list(dict.fromkeys((*names, *tokenizer.special_ids)))
    hint = nearest(text, names)
    likely = ([hint] if hint else names)[:_NAMED]
    shown = ", ".join(f"{name} ({tokenizer.token_to_id(name)})" for name in likely)
    name = option(f"{what.lower()}_token")
    return f"choose one with {name}, a token or its id{', such as ' if shown else ''}{shown}"


def _as_text(tokenizer: Tokenizer, text: str) -> str:
    """How many ids a text is that is no token, in words; "" if the tokenizer cannot tell."""
    import numpy as np

    data = np.frombuffer(text.encode("utf-8", "backslashreplace"), np.uint8)
    try:
        encoder = tokenizer.encoder(dtype="int32", append_eod=False)
        count = len(encoder.encode(data, np.array([[0, len(data)]], np.int64)).ids)
    except TokpackError:
        return ""
    return f": it is text of {count} ids" if count > 1 else ""
