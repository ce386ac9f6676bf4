"""Read a tokenizer.json of a BPE over characters, as SentencePiece's models become one.

It writes U+2581 for a space: by its normalizer (Llama 2, Gemma), or by the pretokenizer Metaspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from tokpack.tokenizers.huggingface import digest_of
from tokpack.tokenizers.spec import MetaspaceSpec, NotNativeError, merges_to_ids
from tokpack.tokenizers.spec_json import added_tokens, bpe_model, pairs_of, steps_of, texts_by_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokpack.tokenizers.spec import AddedToken

SPACE = "\u2581"
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_METASPACE_KEYS = {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ASCII = [byte for byte in range(0x80) if byte != ord(" ")]  # of a text without spaces
_NOT_ASCII = [*range(0x80, 0xC0), *range(0xC2, 0xF5)]  # the other bytes of UTF-8

Prefix = Literal["never", "first", "always"]


def writes_spaces(definition: dict[str, Any]) -> bool:
    """Whether a parsed tokenizer.json is a BPE that writes U+2581 for a space."""
    model, pre_tokenizer = definition.get("model"), definition.get("pre_tokenizer")
    return (
        isinstance(model, dict)
        and model.get("type") == "BPE"
        and (
            _REPLACE in steps_of(definition.get("normalizer"))
            or any(step.get("type") == "Metaspace" for step in steps_of(pre_tokenizer))
        )
    )


def metaspace_spec(definition: dict[str, Any]) -> MetaspaceSpec:
    """Turn such a file into a native definition, or raise NotNativeError.

    Truncation, padding and the post_processor are left out on purpose: a dataset holds plain ids.
    """
    model = bpe_model(definition["model"])
    vocab: dict[str, int] = model["vocab"]
    normalizes, prepends = _normalizer(definition.get("normalizer"))
    prefix, cuts = _pre_tokenizer(definition.get("pre_tokenizer"), normalizes=normalizes)
    ignore_merges = bool(model.get("ignore_merges", False))
    if ignore_merges and cuts:
        raise NotNativeError("its model sets 'ignore_merges', and it cuts texts into words")
    added = added_tokens(definition, vocab)
    _check_added(added, normalizes=normalizes)
    merges = merges_to_ids(*pairs_of(model), vocab)
    byte_ids, unknown = _fallback(model, merges, cuts=cuts)
    return MetaspaceSpec(
        vocab=texts_by_id(vocab, added),
        merges=merges,
        byte_ids=byte_ids,
        unknown=unknown,
        fuse_unknown=bool(model.get("fuse_unk", False)) and not byte_ids,
        ignore_merges=ignore_merges,
        normalizes=normalizes,
        prepends=prepends,
        prefix=prefix,
        cuts_at_spaces=cuts,
        added=added,
        definition=digest_of(definition),
    )


def _normalizer(node: Any) -> tuple[bool, bool]:
    """Whether it replaces spaces, and whether it puts one in front."""
    steps = steps_of(node)
    other = [step for step in steps if step not in (_REPLACE, _PREPEND)]
    if other:
        raise NotNativeError(f"its normalizer is {other[0].get('type')}")
    if steps.count(_PREPEND) > 1 or (steps and _REPLACE not in steps):
        raise NotNativeError("its normalizer puts U+2581 in front otherwise than Llama's")
    return _REPLACE in steps, _PREPEND in steps


def _pre_tokenizer(node: Any, *, normalizes: bool) -> tuple[Prefix, bool]:
    """Which texts get a space in front, and whether words are cut at spaces."""
    # Gemma's file cuts at spaces of which its normalizer has left none.
    steps = [step for step in steps_of(node) if not (normalizes and _cuts_at_plain_spaces(step))]
    if not steps and normalizes:
        return "never", False
    if len(steps) != 1 or steps[0].get("type") != "Metaspace":
        raise NotNativeError("its pre_tokenizer is not one that the native core knows")
    return metaspace_settings(steps[0])


def metaspace_settings(metaspace: dict[str, Any]) -> tuple[Prefix, bool]:
    """Which texts a Metaspace puts U+2581 in front of, and whether it cuts words at it."""
    scheme, split = metaspace.get("prepend_scheme", "always"), metaspace.get("split", True)
    contradicts = metaspace.get("add_prefix_space") is False and scheme != "never"
    understood = (
        not set(metaspace) - _METASPACE_KEYS
        and metaspace.get("replacement") == SPACE
        and scheme in ("never", "first", "always")
    )
    if not understood or contradicts or split not in (None, True, False):
        raise NotNativeError("its pre_tokenizer is a Metaspace of settings that are not understood")
    return cast("Prefix", scheme), split is not False


def _cuts_at_plain_spaces(step: dict[str, Any]) -> bool:
    return (
        step.get("type") == "Split"
        and step.get("pattern") == {"String": " "}
        and step.get("invert") is False
    )


def _check_added(added: Sequence[AddedToken], *, normalizes: bool) -> None:
    """Refuse added tokens that the library may find otherwise than the core does.

    These are such as compete for the same white space, and such as are equal when normalized.
    """
    strips = any(token.rstrip for token in added)
    normal = set()
    for token in added:
        if (normalizes and token.normalized and (token.lstrip or token.rstrip)) or (
            strips and token.content[0].isspace()
        ):
            raise NotNativeError(f"its added token {token.content!r} takes in the text around it")
        if not (normalizes and token.normalized):
            continue
        content = token.content.replace(" ", SPACE)
        if content in normal:
            raise NotNativeError(f"its added token {token.content!r} is there twice, normalized")
        normal.add(content)


def _fallback(
    model: dict[str, Any], merges: npt.NDArray[np.int32], *, cuts: bool
) -> tuple[list[int], int]:
    """What becomes of a character without a token: the ids of bytes, or the id of the unknown."""
    vocab, token = model["vocab"], model.get("unk_token")
    if "" in vocab:
        raise NotNativeError("its vocabulary has an empty token")
    if model.get("byte_fallback"):
        byte_ids = byte_fallback(vocab)
        if np.isin(merges[:, :2], [vocab[t] for t in _BYTES if t in vocab]).any():
            raise NotNativeError("a merge has the token of a byte")
        return byte_ids, 0
    unknown = vocab.get(token) if isinstance(token, str) else None
    if unknown is None:
        raise NotNativeError("it has neither byte fallback nor a token for unknown characters")
    if np.isin(merges, unknown).any() or len(cast("str", token)) == 1:
        raise NotNativeError("its token for unknown characters stands for text, too")
    if model.get("fuse_unk") and cuts and SPACE not in vocab:
        raise NotNativeError("its vocabulary has no token for a space")
    return [], unknown


def byte_fallback(vocab: dict[str, int]) -> list[int]:
    """The ids of the 256 bytes, 0 where a byte is never needed."""
    byte_ids = [vocab.get(token, -1) for token in _BYTES]
    needed = [byte for byte in _ASCII if chr(byte) not in vocab] + _NOT_ASCII
    missing = [byte for byte in needed if byte_ids[byte] < 0]
    if missing:
        raise NotNativeError(f"its vocabulary has no token for the byte 0x{missing[0]:02X}")
    return [max(token_id, 0) for token_id in byte_ids]
