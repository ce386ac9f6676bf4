"""Read a Hugging Face tokenizer.json as a definition for the native core, where it is one.

The native core takes a file only when every piece of it is understood; whatever is not, in this
file or a later version of its format, goes to the Hugging Face library instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tokpack import _core
from tokpack.tokenizers import patterns
from tokpack.tokenizers.huggingface import digest_of
from tokpack.tokenizers.spec import (
    MAX_ID,
    AddedToken,
    NotNativeError,
    byte_level_spec,
    split_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokpack.tokenizers.spec import ByteLevelSpec, NormalForm

_MODEL_KEYS = {
    *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"),
}
_TOKEN_KEYS = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def spec_from_json(definition: dict[str, Any]) -> ByteLevelSpec:
    """Turn a parsed tokenizer.json into a native definition, or raise NotNativeError.

    Truncation, padding and the post_processor are left out on purpose: a dataset holds plain ids.
    """
    model = bpe_model(definition.get("model"))
    if model.get("byte_fallback"):
        raise NotNativeError("its model sets 'byte_fallback'")
    form = _form(definition.get("normalizer"))
    pattern = patterns.recognize(definition.get("pre_tokenizer"))
    vocab: dict[str, int] = model["vocab"]
    added = added_tokens(definition, vocab)
    for token in added:
        if token.lstrip or token.rstrip:
            raise NotNativeError(f"its added token {token.content!r} takes in the text around it")
        content = token.content.encode()
        if form and token.normalized and _core.normalize(form, content) != content:
            raise NotNativeError(f"its added token {token.content!r} is not in the form {form}")
    ignore_merges = bool(model.get("ignore_merges", False))
    spec = byte_level_spec(
        vocab, pairs_of(model), added, pattern=pattern, form=form, ignore_merges=ignore_merges
    )
    is_named = patterns.is_name(pattern) and form in ("", "NFC")
    return spec if is_named else replace(spec, definition=digest_of(definition))


def texts_by_id(vocab: dict[str, int], added: Iterable[AddedToken]) -> list[bytes | None]:
    """The tokens of a vocabulary as UTF-8, by their ids; None for the ids of other added tokens."""
    table: list[bytes | None] = [None] * (max([*vocab.values(), *(t.id for t in added)]) + 1)
    try:
        for token, token_id in vocab.items():
            table[token_id] = token.encode()
    except UnicodeEncodeError:
        raise NotNativeError("its vocabulary has a token that is not text") from None
    return table


def steps_of(node: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pretokenizer, those of a Sequence one by one."""
    if not isinstance(node, dict):
        return []
    children = node.get("normalizers", node.get("pretokenizers"))
    if node.get("type") != "Sequence" or not isinstance(children, list):
        return [node]
    return [step for child in children for step in steps_of(child)]


def bpe_model(model: Any) -> dict[str, Any]:
    """The model of a tokenizer.json, if it is a BPE of settings that are understood."""
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise NotNativeError(f"its model is {kind or 'of an unnamed type'}, not BPE")
    unknown = sorted(set(model) - _MODEL_KEYS)
    if unknown:
        raise NotNativeError(f"its model has the unknown setting '{unknown[0]}'")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise NotNativeError(f"its model sets '{key}'")
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(merges, list):
        raise NotNativeError("its model has no merges")
    check_ids(vocab)
    return model


def check_ids(vocab: Any) -> dict[str, int]:
    """A vocabulary, if it has ids that each are used once."""
    if not isinstance(vocab, dict) or not vocab:
        raise NotNativeError("its model has no vocabulary")
    if set(map(type, vocab.values())) != {int}:
        raise NotNativeError("an id is not a whole number")
    ids = set(vocab.values())
    if min(ids) < 0 or max(ids) > MAX_ID or len(ids) < len(vocab):
        raise NotNativeError("an id is used twice, or out of range")
    return vocab


def _form(normalizer: Any) -> NormalForm:
    """The normal form that normalizers lead to: the last one composes or not."""
    steps = steps_of(normalizer)
    if normalizer is not None and not isinstance(normalizer, dict):
        raise NotNativeError("its normalizer is not an object")
    for step in steps:
        if step.get("type") not in ("NFC", "NFD", "NFKC", "NFKD"):
            raise NotNativeError(f"its normalizer is {step.get('type')}")
    if not steps:
        return ""
    compatible = "K" if any("K" in step["type"] for step in steps) else ""
    return cast("NormalForm", f"NF{compatible}{steps[-1]['type'][-1]}")


def pairs_of(model: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Left and right tokens of the merges of a model that ``bpe_model`` has taken.

    Older files have "a b", newer ones ["a", "b"].
    """
    merges: list[Any] = model["merges"]
    types = set(map(type, merges))
    if types == {str}:
        merges = [merge for merge in merges if not merge.startswith("#version")]
        pairs = split_pairs("\n".join(merges))
        if pairs is not None and len(pairs[0]) == len(merges):
            return pairs
        halves = [merge.split(" ") for merge in merges]  # a token may have a line break
        if set(map(len, halves)) <= {2}:
            return [left for left, _ in halves], [right for _, right in halves]
    elif types <= {list} and set(map(len, merges)) <= {2}:
        left, right = [pair[0] for pair in merges], [pair[1] for pair in merges]
        if set(map(type, left)) | set(map(type, right)) <= {str}:
            return left, right
    raise NotNativeError("a merge is not a pair of tokens")


def _is_token(token: Any) -> bool:
    """Whether an added token has content that is text, and an id; the rest is looked at later."""
    if not isinstance(token, dict) or type(token.get("id")) is not int:
        return False
    content = token.get("content")
    return isinstance(content, str) and not any("\ud800" <= c <= "\udfff" for c in content)


def added_tokens(definition: dict[str, Any], vocab: dict[str, int]) -> tuple[AddedToken, ...]:
    """The added tokens of a tokenizer.json, with the ids that the library gives them."""
    tokens = definition.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(map(_is_token, tokens)):
        raise NotNativeError("its added tokens have no usable content or id")
    result: dict[str, AddedToken] = {}
    # Of the next one outside the vocabulary: versions of the library count on from the largest id
    # of an added token, or of one outside the vocabulary.
    following = outside = len(vocab)
    taken = {number: token for token, number in vocab.items()}
    for token in tokens:
        content = token["content"]
        if set(token) - _TOKEN_KEYS or token.get("single_word"):
            raise NotNativeError(f"its added token {content!r} is found by the text around it")
        special = bool(token.get("special", False))
        # The library gives ids of its own to tokens outside the vocabulary, whatever the file says.
        in_vocab = content in vocab
        expected = vocab[content] if in_vocab else following
        agreed = in_vocab or following == outside
        if not content or content in result or token["id"] != expected or not agreed:
            raise NotNativeError(f"its added token {content!r} is empty, twice or misnumbered")
        # The library may take the flags of the one for the other's.
        if taken.setdefault(expected, content) != content:
            raise NotNativeError(f"its added token {content!r} has the id of {taken[expected]!r}")
        result[content] = AddedToken(
            content,
            expected,
            special,
            normalized=bool(token.get("normalized", not special)),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
        )
        following = max(following, expected + 1)
        outside += not in_vocab
    return tuple(result.values())
