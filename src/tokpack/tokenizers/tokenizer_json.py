"""Read a Hugging Face tokenizer.json as a definition for the native core, if it is one.

The native core takes a file only if every part of it is understood. Anything else, in this file or
a later version of its format, is left to the Hugging Face library.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tokpack import _core
from tokpack.tokenizers import patterns
from tokpack.tokenizers.definition import (
    LONGEST,
    MAX_ID,
    AddedToken,
    JsonSpec,
    NotNativeError,
    byte_level_spec,
    check_ids,
    decode_alphabet,
    merges_to_ids,
    missing_bytes,
    split_pairs,
    vocab_by_id,
)
from tokpack.tokenizers.huggingface import digest_of, normalizing
from tokpack.tokenizers.patterns import SPACE, metaspace_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import numpy.typing as npt

    from tokpack.tokenizers.definition import (
        BpeSpec,
        ByteLevelSpec,
        NormalForm,
        NormalizerStep,
    )
    from tokpack.tokenizers.patterns import Prefix


_BPE_KEYS = {
    *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
    *("fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"),
}
_TOKEN_KEYS = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def spec_of(definition: dict[str, Any]) -> BpeSpec:
    """The native definition for a parsed tokenizer.json. NotNativeError.

    Truncation, padding and the post_processor are left out on purpose, since a dataset has plain
    ids.
    """
    model = definition["model"]
    kind = model.get("type")
    if kind == "Unigram":
        return _unigram_spec(definition)
    if kind == "BPE" and not _is_of_bytes(definition):
        if not _writes_spaces(definition):
            return _words_spec(definition)
        try:
            return _metaspace_spec(definition)
        except NotNativeError:
            with suppress(NotNativeError):
                return _words_spec(definition)
            raise
    is_prefixed = kind == "BPE" and model.get("continuing_subword_prefix")
    if is_prefixed or kind in ("WordPiece", "WordLevel"):
        return _words_spec(definition)
    return _bytes_spec(definition)


def _bytes_spec(definition: dict[str, Any]) -> ByteLevelSpec:
    """The definition of a byte-level BPE. NotNativeError."""
    model = bpe_model(definition.get("model"), {"end_of_word_suffix"})
    form, steps = _normalizers(definition.get("normalizer"))
    pattern = patterns.recognize(definition.get("pre_tokenizer"))
    vocab: dict[str, int] = model["vocab"]
    added = added_tokens(definition, vocab)
    check_added(added, _normal_form(form, steps))
    changing = steps or ([named(form)] if form else [])
    _check_first(patterns.steps_of(definition.get("pre_tokenizer")), changing, added)
    ignore_merges = bool(model.get("ignore_merges", False))
    spec = byte_level_spec(
        vocab, pairs_of(model), added, pattern=pattern, form=form, ignore_merges=ignore_merges
    )
    suffix = _suffix(model, spec)
    # What was native from the first has a fingerprint of its own, all else that of the library.
    # Byte fallback changes no id: each byte has a token of its own.
    changes = bool(steps or suffix) or any(_changes(token, form) for token in added)
    is_first = patterns.is_name(pattern) and form in ("", "NFC") and not model.get("byte_fallback")
    if is_first and not changes and not any(token.looks_around for token in added):
        return spec
    return replace(
        spec,
        steps=steps,
        suffix=suffix,
        changes_text=changes or not patterns.keeps_text(pattern),
        definition=digest_of(definition),
    )


def _suffix(model: dict[str, Any], spec: ByteLevelSpec) -> bytes:
    """How the tokens end that end a word, as CLIP's."""
    (suffix,) = decode_alphabet([model.get("end_of_word_suffix") or ""])
    if suffix != b"":  # the bytes alone are there, as byte_level_spec has found
        _check_affixes(spec.vocab, b"", suffix)
    if suffix and spec.ignore_merges:
        raise NotNativeError("its model sets 'end_of_word_suffix' in a way that is not understood")
    return suffix or b""


def _check_affixes(
    vocab: Sequence[bytes | None], prefix: bytes | None, suffix: bytes | None
) -> None:
    """Refuse a vocabulary without a token for each byte: at the begin of a word, within and at the
    end.
    """
    if prefix is None or suffix is None:
        raise NotNativeError("its prefix or suffix is outside the byte-level alphabet")
    for before, after in product({b"", prefix}, {b"", suffix}):
        fitting = [t for t in vocab if t and t.startswith(before) and t.endswith(after)]
        if missing := missing_bytes([t[len(before) : len(t) - len(after)] for t in fitting]):
            place = " at the end of a word" if after else " within a word" if before else ""
            raise NotNativeError(
                f"its vocabulary has no token for the byte 0x{missing[0]:02X}{place}"
            )


def _changes(token: AddedToken, form: NormalForm) -> bool:
    """Whether an added token is looked for, and decoded, in another form than its own."""
    content = token.content.encode()
    return bool(form) and token.normalized and _core.normalize(form, content) != content


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


def bpe_model(model: Any, understood: Collection[str] = ()) -> dict[str, Any]:
    """The model of a tokenizer.json, if it is a BPE whose settings are all understood."""
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise NotNativeError(f"its model is {kind or 'of an unnamed type'}, not BPE")
    unknown = sorted(set(model) - _BPE_KEYS)
    if unknown:
        raise NotNativeError(f"its model has the unknown setting '{unknown[0]}'")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key) and not (key in understood and isinstance(model[key], str)):
            raise NotNativeError(f"its model sets '{key}'")
    if not isinstance(model.get("merges"), list):
        raise NotNativeError("its model has no merges")
    check_ids(model.get("vocab", {}), "its model", NotNativeError)
    return model


def _normalizers(normalizer: Any) -> tuple[NormalForm, tuple[NormalizerStep, ...]]:
    """The normal form after all normalizers, or else their steps.

    Of normal forms the last one decides whether text is composed; but where characters have come
    from is then for all but NFC another place than after them one by one.
    """
    steps = steps_of(normalizer)
    if normalizer is not None and not isinstance(normalizer, dict):
        raise NotNativeError("its normalizer is not an object")
    if not steps:
        return "", ()
    kinds = {str(step.get("type")) for step in steps}
    if not kinds <= _FORMS:
        return "", normalizer_steps(normalizer)
    compatible = "K" if any("K" in kind for kind in kinds) else ""
    form = cast("NormalForm", f"NF{compatible}{steps[-1]['type'][-1]}")
    return (form, ()) if form == "NFC" or len(kinds) == 1 else ("", normalizer_steps(normalizer))


def _normal_form(form: NormalForm, steps: Sequence[NormalizerStep]) -> Callable[[str], str]:
    """What the core makes of a text."""
    if steps:
        normalize = _core.TextNormalizer(core_steps(steps)).normalize
        return lambda text: normalize(text.encode()).decode()
    return lambda text: _core.normalize(form, text.encode()).decode() if form else text


def pairs_of(model: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The left and right tokens of the merges of a model that ``bpe_model`` has accepted.

    Older files have "a b", newer ones ["a", "b"].
    """
    merges: list[Any] = model["merges"]
    types = set(map(type, merges))
    if types == {str}:
        merges = [merge for merge in merges if not merge.startswith("#version")]
        pairs = split_pairs("\n".join(merges))
        if pairs is not None and len(pairs[0]) == len(merges):
            return pairs
        halves = [merge.split(" ") for merge in merges]  # a token may have a newline
        if set(map(len, halves)) <= {2}:
            return [left for left, _ in halves], [right for _, right in halves]
    elif types <= {list} and set(map(len, merges)) <= {2}:
        left, right = [pair[0] for pair in merges], [pair[1] for pair in merges]
        if set(map(type, left)) | set(map(type, right)) <= {str}:
            return left, right
    raise NotNativeError("a merge is not a pair of tokens")


def _is_token(token: Any) -> bool:
    """Whether an added token has a text as its content, and an id; the rest is checked later."""
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
    # The id of the next token outside of the vocabulary. Versions of the library differ: they count
    # on from the largest id of an added token, or of one outside of the vocabulary.
    following = outside = len(vocab)
    taken = {number: token for token, number in vocab.items()}
    for token in tokens:
        content = token["content"]
        if unknown := set(token) - _TOKEN_KEYS:
            raise NotNativeError(f"its added token {content!r} has {min(unknown)!r}")
        special = bool(token.get("special", False))
        # The library gives its own ids to tokens outside of the vocabulary, whatever the file says.
        in_vocab = content in vocab
        expected = vocab[content] if in_vocab else following
        agreed = in_vocab or following == outside
        if not content:
            raise NotNativeError("it has an empty added token")
        if content in result:
            raise NotNativeError(f"it has the added token {content!r} twice")
        if token["id"] != expected or not agreed:
            raise NotNativeError(
                f"its library may change the id {token['id']} of the added token {content!r}"
            )
        # The library may mix up the flags of the two.
        if taken.setdefault(expected, content) != content:
            raise NotNativeError(f"its added token {content!r} has the id of {taken[expected]!r}")
        result[content] = AddedToken(
            content,
            expected,
            special,
            normalized=bool(token.get("normalized", not special)),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
            single_word=bool(token.get("single_word")),
        )
        following = max(following, expected + 1)
        outside += not in_vocab
    return tuple(result.values())


# SentencePiece's models become a BPE over characters in a tokenizer.json, which writes U+2581 for a
# space: by its normalizer (Llama 2, Gemma), or by the pretokenizer Metaspace.

_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_LLAMAS: tuple[list[Any], ...] = ([], [_REPLACE], [_PREPEND, _REPLACE], [_REPLACE, _PREPEND])
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_ASCII = [byte for byte in range(0x80) if byte != ord(" ")]  # of a text without spaces
_NOT_ASCII = [*range(0x80, 0xC0), *range(0xC2, 0xF5)]  # the other bytes of UTF-8


def _writes_spaces(definition: dict[str, Any]) -> bool:
    """Whether a tokenizer.json of a BPE writes U+2581 for spaces, or has no spaces left in its
    texts, and cuts them nowhere else.
    """
    normalizers = steps_of(definition.get("normalizer"))
    cuts = _cuts_left(definition.get("pre_tokenizer"), normalizers)
    if not cuts:
        return _is_gone(" ", normalizers)
    return [step.get("type") for step in cuts] == ["Metaspace"]


def _metaspace_spec(definition: dict[str, Any]) -> JsonSpec:
    """The native definition for such a tokenizer.json. NotNativeError."""
    model = bpe_model(definition["model"])
    vocab: dict[str, int] = model["vocab"]
    normalizers = steps_of(definition.get("normalizer"))
    steps = normalizer_steps(definition.get("normalizer"))
    prefix, cuts = _metaspace_pre_tokenizer(definition.get("pre_tokenizer"), normalizers)
    ignore_merges = bool(model.get("ignore_merges", False))
    if ignore_merges and cuts:
        raise NotNativeError("its model sets 'ignore_merges', and it cuts texts into words")
    added = added_tokens(definition, vocab)
    check_added(added, _normal_form("", steps))
    _check_first((("Metaspace", prefix, True),), steps, added)
    merges = merges_to_ids(*pairs_of(model), vocab)
    byte_ids, unknown = _fallback(model, merges, cuts=cuts)
    # Those of Llama and Gemma take no pass over the text of their own. White space beside a token
    # is another matter once it is written otherwise.
    is_folded = normalizers in _LLAMAS and not any(
        token.normalized and (token.lstrip or token.rstrip) for token in added
    )
    arguments = {
        "byte_ids": byte_ids,
        "unknown": unknown,
        "fuse_unknown": bool(model.get("fuse_unk", False)) and not byte_ids,
        "ignore_merges": ignore_merges,
        "normalizes": is_folded and _REPLACE in normalizers,
        "prepends": is_folded and _PREPEND in normalizers,
        "steps": () if is_folded else steps,
        "prefix": prefix,
        "cuts_at_spaces": cuts,
    }
    table = texts_by_id(vocab, added)
    return JsonSpec(table, merges, added, "MetaspaceBPE", arguments, digest_of(definition))


def _metaspace_pre_tokenizer(node: Any, normalizers: list[dict[str, Any]]) -> tuple[Prefix, bool]:
    """Which texts get a space before them, and whether words are cut at spaces."""
    steps = _cuts_left(node, normalizers)
    if not steps:
        return "never", False
    prefix, space, cuts = metaspace_settings(steps[0])
    if space != SPACE:
        raise NotNativeError(f"its pre_tokenizer writes {space!r} for a space")
    return prefix, cuts


def _cuts_left(node: Any, normalizers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps of a pre_tokenizer, but for those that cut at a text that no normalized one has,
    as Gemma's at spaces.
    """

    def cuts(step: dict[str, Any]) -> bool:
        if step.get("type") != "Split" or step.get("invert") is not False:
            return True
        return not _is_gone((step.get("pattern") or {}).get("String"), normalizers)

    return [step for step in steps_of(node) if cuts(step)]


def _is_gone(text: Any, normalizers: list[dict[str, Any]]) -> bool:
    """Whether normalizers replace a text, and put nothing there that it may be made of."""
    patterns = [step.get("pattern") for step in normalizers]
    if not text or {"String": text} not in patterns:
        return False
    rest = normalizers[patterns.index({"String": text}) :]
    put = [step.get("content", step.get("prepend")) for step in rest]
    return all(isinstance(one, str) and one and not set(one) & set(text) for one in put)


def _fallback(
    model: dict[str, Any], merges: npt.NDArray[np.int32], *, cuts: bool
) -> tuple[list[int], int]:
    """The ids for a character without a token: those of its bytes, or that of the unknown token."""
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


_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
_BY_CHARACTER = {"Lowercase", "Nmt", "StripAccents"}
_SEPARATOR = "0"  # between characters in one call: no normalizer here changes or makes it
# All characters that normalizers may change: others are unassigned, private, ideographs or
# syllables.
_RANGES = (
    *(range(0x30), range(0x31, 0x3400), range(0xA000, 0xAC00)),
    *(range(0xF900, 0x20000), range(0xE0000, 0xE0200)),
)
_REGEX = {
    " {2,}": "space runs",
    r"\s{2,}|[\n\r\t]": "white space",
}
_PLAIN_REGEX = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}
_BERT = ("clean_text", "handle_chinese_chars", "lowercase")


def normalizer_steps(node: Any) -> tuple[NormalizerStep, ...]:
    """The normalizers as steps for the core: a name, and two texts. NotNativeError."""
    steps: list[NormalizerStep] = []
    nodes = steps_of(node)
    while nodes:
        by_character = []
        while nodes and nodes[0].get("type") in _BY_CHARACTER:
            by_character.append(nodes.pop(0))
        steps += _characters(by_character) if by_character else _step(nodes.pop(0))
    try:
        _core.TextNormalizer(core_steps(steps))
    except ValueError as error:  # the library itself fails only at a text to which a rule applies
        raise NotNativeError(str(error)) from None
    return tuple(steps)


def core_steps(steps: Sequence[NormalizerStep]) -> list[tuple[str, bytes, bytes]]:
    """The steps in the form that ``_core.TextNormalizer`` takes."""
    return [(name, base64.b64decode(a), base64.b64decode(b)) for name, a, b in steps]


def _step(node: dict[str, Any]) -> list[NormalizerStep]:
    kind = node.get("type")
    settings = {key: value for key, value in node.items() if key != "type"}
    if kind == "Precompiled" and set(settings) == {"precompiled_charsmap"}:
        return [named("rules", _charsmap(settings["precompiled_charsmap"]))]
    if kind == "Strip" and set(settings) == {"strip_left", "strip_right"}:
        sides = [side for side in ("left", "right") if settings[f"strip_{side}"] is True]
        return [named(f"strip {side}") for side in sides]
    if kind == "Prepend" and set(settings) == {"prepend"} and isinstance(settings["prepend"], str):
        if not settings["prepend"]:  # the library fails in a later step
            raise NotNativeError("its normalizer prepends nothing")
        return [named("prepend", b"", settings["prepend"].encode())]
    if kind == "Replace" and set(settings) == {"pattern", "content"}:
        return [_replace(**settings)]
    if kind == "BertNormalizer" and set(settings) == {*_BERT, "strip_accents"}:
        return _bert(**settings)
    if kind in _FORMS and not settings:
        return [named(kind)]
    raise NotNativeError(f"its normalizer is {kind}")


def _charsmap(text: Any) -> bytes:
    try:
        rules = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        rules = b""
    if not rules:
        raise NotNativeError("its normalization rules (precompiled_charsmap) are not base64")
    return rules


def _replace(pattern: Any, content: Any) -> NormalizerStep:
    kind, text = next(iter(pattern.items())) if isinstance(pattern, dict) else ("", None)
    if len(pattern) == 1 and isinstance(text, str) and text and isinstance(content, str):
        if kind == "Regex" and text in _REGEX:
            return named(_REGEX[text], b"", content.encode())
        if kind == "Regex" and text in _PLAIN_REGEX:
            kind, text = "String", _PLAIN_REGEX[text]
        if kind == "String":
            return named("replace", text.encode(), content.encode())
        if kind == "Regex":
            return named("expression", text.encode(), content.encode())
    raise NotNativeError(f"its normalizer replaces {text!r}, which is not understood")


def _bert(
    *, clean_text: Any, handle_chinese_chars: Any, strip_accents: Any, lowercase: Any
) -> list[NormalizerStep]:
    if strip_accents is None:
        strip_accents = lowercase
    return [
        *([named("clean text")] if clean_text else []),
        *([named("ideographs")] if handle_chinese_chars else []),
        *([named("NFD"), named("bert marks")] if strip_accents else []),
        *(_characters([{"type": "Lowercase"}]) if lowercase else []),
    ]


def _characters(nodes: list[dict[str, Any]]) -> list[NormalizerStep]:
    """A step that replaces each character as the library's normalizers do."""
    for node in nodes:
        if set(node) != {"type"}:
            raise NotNativeError(f"its normalizer is {node['type']}")
    sequence = {"type": "Sequence", "normalizers": nodes}
    changeable = [chr(c) for characters in _RANGES for c in characters]
    becomes = normalizing(sequence)(_SEPARATOR.join(changeable)).split(_SEPARATOR)
    changed = [(c, to) for c, to in zip(changeable, becomes, strict=True) if to != c]
    return [
        named(
            "characters",
            "".join(c for c, _ in changed).encode(),
            "".join(to + "\0" for _, to in changed).encode(),
        )
    ]


def named(name: str, first: bytes = b"", second: bytes = b"") -> NormalizerStep:
    """A step of the core, with a name and two texts."""
    return name, base64.b64encode(first).decode(), base64.b64encode(second).decode()


def check_added(added: Sequence[AddedToken], normal: Callable[[str], str]) -> None:
    """Refuse added tokens that the library may find elsewhere than the core does.

    These are tokens that compete for the same white space, or are equal when normalized, as
    ``normal`` does it.
    """
    strips = any(token.rstrip for token in added)
    seen = set()
    for token in added:
        text = normal(token.content) if token.normalized else token.content
        if not text or (strips and text[0].isspace()):
            raise NotNativeError(f"its added token {token.content!r} takes in the text around it")
        if token.normalized and text in seen:
            raise NotNativeError(f"its added token {token.content!r} is there twice, normalized")
        if token.normalized:
            seen.add(text)


# A Unigram in a tokenizer.json was made from a SentencePiece model (T5, XLM-R, DeBERTa). If
# SentencePiece and the Hugging Face library differ, the library is followed, because the file is
# its own.

_NO_MERGES = np.empty((0, 3), np.int32)
_UNIGRAM_KEYS = {"type", "unk_id", "vocab", "byte_fallback"}


def _unigram_spec(definition: dict[str, Any]) -> JsonSpec:
    """The native definition for such a tokenizer.json. NotNativeError."""
    model = definition["model"]
    unknown_settings = sorted(set(model) - _UNIGRAM_KEYS)
    if unknown_settings:
        raise NotNativeError(f"its model has the unknown setting '{unknown_settings[0]}'")
    tokens, scores = _vocabulary(model.get("vocab"))
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise NotNativeError("its vocabulary has a token twice")
    unknown = _unknown(model, vocab)
    normalizers = steps_of(definition.get("normalizer"))
    prefix, splits, cuts = _unigram_pre_tokenizer(definition.get("pre_tokenizer"), normalizers)
    steps = normalizer_steps(definition.get("normalizer"))
    added = added_tokens(definition, vocab)
    check_added(added, _normal_form("", steps))
    _check_first(cuts or (("Metaspace", prefix, True),), steps, added)
    table = texts_by_id(vocab, added)
    if max(len(token) for token in table if token is not None) > LONGEST:
        raise NotNativeError("its vocabulary has a very long token")
    arguments = {
        "scores": scores,
        "unknown": unknown,
        "byte_ids": byte_fallback(vocab) if model.get("byte_fallback") else [],
        "steps": steps,
        **({"cuts": cuts} if cuts else {"splits_white_space": splits, "prefix": prefix}),
    }
    encoder = "WordUnigram" if cuts else "MetaspaceUnigram"
    return JsonSpec(table, _NO_MERGES, added, encoder, arguments, digest_of(definition))


def _vocabulary(vocab: Any) -> tuple[list[str], list[float]]:
    """The tokens by id and their scores, as the library reads them."""
    if not isinstance(vocab, list) or not 0 < len(vocab) <= MAX_ID:
        raise NotNativeError("its model has no vocabulary")
    if not all(isinstance(row, list) and len(row) == 2 for row in vocab):
        raise NotNativeError("its vocabulary is not one of tokens and scores")
    tokens, numbers = zip(*vocab, strict=True)
    if set(map(type, tokens)) != {str} or set(map(type, numbers)) - {int, float}:
        raise NotNativeError("its vocabulary is not one of tokens and scores")
    scores = [_as_read_by_the_library(number) for number in numbers]
    if not all(-1e6 < score <= 0 for score in scores):
        raise NotNativeError("its vocabulary has a score above 0, or out of range")
    return list(tokens), scores


def _as_read_by_the_library(number: float) -> float:
    """A score as the library's JSON reader reads its shortest decimal form.

    It multiplies or divides the digits by a power of ten, and so may round twice.
    """
    digits, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = digits.partition(".")
    significand, power = int(whole + fraction), int(exponent or 0) - len(fraction)
    if significand >= 1 << 64 or abs(power) > 300:
        raise NotNativeError(f"its vocabulary has the score {number}")
    value = float(significand)
    value = value * float(f"1e{power}") if power >= 0 else value / float(f"1e{-power}")
    return -value if number < 0 else value


def _unknown(model: dict[str, Any], vocab: dict[str, int]) -> int:
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(vocab):
        raise NotNativeError("it has no token for unknown characters")
    text = list(vocab)[unknown]
    if len(text) < 2 or SPACE in text or " " in text:
        raise NotNativeError("its token for unknown characters stands for text, too")
    if any(len(token) > len(text) and not token.replace(text, "") for token in vocab):
        raise NotNativeError("its token for unknown characters is in another one, several times")
    if SPACE not in vocab:
        raise NotNativeError("its vocabulary has no token for a space")
    return unknown


def _unigram_pre_tokenizer(
    node: Any, normalizers: list[dict[str, Any]]
) -> tuple[Prefix, bool, tuple[patterns.Step, ...]]:
    """Which texts get a space before them, and whether white space is cut out; if there is more to
    it, all steps.
    """
    steps = steps_of(node)
    metaspaces = [step for step in steps if step.get("type") == "Metaspace"]
    if not metaspaces and _is_gone(" ", normalizers):
        return "never", False, patterns.steps_of_characters(node)
    if len(metaspaces) != 1:
        raise NotNativeError("its pre_tokenizer is not one that the native core knows")
    prefix, space, cuts = metaspace_settings(metaspaces[0])
    if space != SPACE:
        raise NotNativeError(f"its pre_tokenizer writes {space!r} for a space")
    splits = steps[:1] == [{"type": "WhitespaceSplit"}]
    if len(steps) == 1 + splits and cuts and (not splits or prefix == "always"):
        return prefix, splits, ()
    return prefix, False, patterns.steps_of_characters(node)


_PUTTING = ("replace", "expression", "space runs", "white space", "prepend")
# SeamlessM4T's: with no line left in a text, the second one removes nothing but a whole text.
_LINES = named("expression", rb"[\n\r\t]", b" ")
_SPACES_ALONE = named("expression", f"^{SPACE}+$".encode())


def _check_first(
    cuts: Sequence[Any], steps: Sequence[NormalizerStep], added: Sequence[AddedToken]
) -> None:
    """Refuse a Metaspace that puts a space before the begin of a document, where the library may
    put it elsewhere.
    """
    for number, cut in enumerate(cuts):
        is_first = cut[0] == "Metaspace" and cut[1].startswith("first")
        if is_first and not (_keeps_the_begin(steps, added) if number == 0 else not steps):
            raise NotNativeError(
                "its normalizer may remove the begin of a text, which gets a prefix"
            )


def _keeps_the_begin(steps: Sequence[NormalizerStep], added: Sequence[AddedToken]) -> bool:
    """Whether the library puts the prefix of a document at the same place as the core.

    That is certain if no step removes the first characters of a document, but to put a space there,
    before which there is no prefix, or to leave nothing.
    """
    has_lines, has_put = True, False
    for step in steps:
        name, _, put = step
        if name in ("rules", *_FORMS):
            if any(token.normalized for token in added) or (name == "rules" and has_put):
                return False
        elif name in _PUTTING and base64.b64decode(put).decode().startswith((" ", SPACE)):
            has_put = True
            has_lines = has_lines and step != _LINES
        elif step != named("strip right") and (step != _SPACES_ALONE or has_lines):
            return False
    return True


_WORDPIECE_KEYS = {
    *("type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"),
}
_MOST_CUTS = 6


def _is_of_bytes(definition: dict[str, Any]) -> bool:
    steps = steps_of(definition.get("pre_tokenizer"))
    return any(step.get("type") == "ByteLevel" for step in steps)


def _words_spec(definition: dict[str, Any]) -> JsonSpec:
    """The definition of a WordPiece, a WordLevel, or a BPE of the characters or bytes of words,
    those with a prefix. NotNativeError.
    """
    model = definition["model"]
    of_bytes = model["type"] == "BPE" and _is_of_bytes(definition)
    merges, merging = _NO_MERGES, None
    if model["type"] == "BPE":
        vocab, prefix, longest, merges, merging = _word_bpe(model, of_bytes=of_bytes)
    else:
        vocab, prefix, longest = _words(model)
    unknown = vocab.get(model["unk_token"]) if isinstance(model.get("unk_token"), str) else None
    if unknown is None and merging is not None and _is_never_unknown(vocab, prefix, merging):
        unknown = 0
    if unknown is None or not isinstance(prefix, str) or type(longest) is not int or longest < 0:
        raise NotNativeError("it has no token for unknown words, or a setting of another type")
    steps = normalizer_steps(definition.get("normalizer"))
    added = added_tokens(definition, vocab)
    check_added(added, _normal_form("", steps))
    table = texts_by_id(vocab, added)
    if of_bytes:
        table = vocab_by_id(vocab, len(table))
        _check_affixes(table, *decode_alphabet([prefix, model.get("end_of_word_suffix") or ""]))
        patterns.recognize(definition.get("pre_tokenizer"))
    most = min(longest, max(len(token) for token in table if token is not None))
    if model["type"] == "WordPiece" and most > LONGEST:
        raise NotNativeError("its vocabulary has a very long token")
    pre_tokenizer = definition.get("pre_tokenizer")
    cuts = tuple(patterns.steps_of(pre_tokenizer)) if of_bytes else _cuts(pre_tokenizer)
    _check_first(cuts, steps, added)
    arguments = {
        "prefix": prefix,
        "unknown": unknown,
        "steps": steps,
        "cuts": cuts,
        **({"longest_word": longest} if merging is None else merging),
    }
    encoder = "WordPiece" if merging is None else "WordBPE"
    return JsonSpec(table, merges, added, encoder, arguments, digest_of(definition))


def _is_never_unknown(vocab: dict[str, int], prefix: Any, merging: dict[str, Any]) -> bool:
    """Whether each character has a token, or bytes: those of words of bytes have."""
    if merging["of_bytes"]:
        return True
    affixes = prefix or merging["suffix"]
    return merging["byte_fallback"] and not affixes and set(_BYTES) <= set(vocab)


_WORDLEVEL_KEYS = {"type", "vocab", "unk_token"}
_IN_NO_TOKEN = "\uffff\ufffe"
_NO_LIMIT = (1 << 31) - 1


def _words(model: dict[str, Any]) -> tuple[dict[str, int], Any, Any]:
    """The vocabulary of a WordPiece, its prefix and the most characters of a word.

    A WordLevel is one of which no token goes on a word.
    """
    is_level = model["type"] == "WordLevel"
    keys = _WORDLEVEL_KEYS if is_level else _WORDPIECE_KEYS
    if set(model) != keys:
        other = sorted(set(model) ^ keys)[0]
        raise NotNativeError(f"its model has, or has not, the setting '{other}'")
    vocab: dict[str, int] = model["vocab"]
    check_ids(vocab, "its model", NotNativeError)
    if not is_level:
        return vocab, model["continuing_subword_prefix"], model["max_input_chars_per_word"]
    if any(token.startswith(_IN_NO_TOKEN) for token in vocab):
        raise NotNativeError(f"its vocabulary has a token that begins with {_IN_NO_TOKEN!r}")
    return vocab, _IN_NO_TOKEN, _NO_LIMIT


def _word_bpe(
    model: Any, *, of_bytes: bool
) -> tuple[dict[str, int], Any, int, npt.NDArray[np.int32], dict[str, Any]]:
    """The vocabulary of a BPE over characters or bytes, its prefix, no limit, merges and settings.

    Of bytes each has a token, so that no other is needed.
    """
    model = bpe_model(model, {"continuing_subword_prefix", "end_of_word_suffix"})
    prefix, suffix = (
        model.get(key) or "" for key in ("continuing_subword_prefix", "end_of_word_suffix")
    )
    vocab: dict[str, int] = model["vocab"]
    if "" in vocab:
        raise NotNativeError("its vocabulary has an empty token")
    keys = {"fuse_unknown": "fuse_unk", "byte_fallback": "byte_fallback"}
    settings = {name: bool(model.get(key)) and not of_bytes for name, key in keys.items()}
    settings["ignore_merges"] = bool(model.get("ignore_merges", False))
    merges = merges_to_ids(*pairs_of(model), vocab, prefix=prefix)
    settings["of_bytes"] = of_bytes
    return vocab, prefix, _NO_LIMIT, merges, {"suffix": suffix, **settings}


def _cuts(node: Any) -> tuple[str, ...] | tuple[patterns.Step, ...]:
    """The pre-tokenizers by their names in the core, or else as steps of expressions."""
    steps = steps_of(node)
    if 0 < len(steps) <= _MOST_CUTS:
        with suppress(NotNativeError):
            return tuple(map(_cut, steps))
    if not steps and node is not None:
        raise NotNativeError("its pre_tokenizer has no steps")
    return patterns.steps_of_characters(node) if steps else ()


def _cut(step: dict[str, Any]) -> str:
    kind = step.get("type")
    if kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit") and len(step) == 1:
        return str(kind)
    if step == {"type": "Punctuation", "behavior": "Isolated"}:
        return "Punctuation"
    if step == {"type": "Digits", "individual_digits": True}:
        return "Digits"
    if step == {"type": "Digits", "individual_digits": False}:
        return "Digits together"
    raise NotNativeError(f"its pre_tokenizer has the step {kind}")
