"""Vocabularies of ranks: tiktoken's files and names, Mistral's tekken.json, Megatron's list."""

from __future__ import annotations

import binascii
import hashlib
import json
import logging
import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokpack import _core
from tokpack.display import brief
from tokpack.errors import TokenizerError, UsageError, option
from tokpack.storage.disk import parse_json as parse
from tokpack.storage.disk import read_whole
from tokpack.tokenizers import hub, patterns
from tokpack.tokenizers.definition import (
    AddedToken,
    ByteLevelSpec,
    NotNativeError,
    byte_level_spec,
    check_ids,
    missing_bytes,
    split_pairs,
    to_json,
)
from tokpack.tokenizers.frame import EOD_NAMES
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, digest_of
from tokpack.tokenizers.native import NativeTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.tokenizers.base import SpecialMode, Tokenizer, TokenizerOptions
    from tokpack.tokenizers.definition import NormalForm
    from tokpack.tokenizers.folder import Settings


EOD = "<|endoftext|>"
_FEW = 64  # so many tokens without a merge, such as special ones, are not worth a warning
_log = logging.getLogger(__name__)


def read_bytes(path: Path) -> bytes:
    """The content of a tokenizer file. TokenizerError."""
    problem = "cannot read the tokenizer file: "
    return read_whole(path, missing=TokenizerError, wrong=TokenizerError, problem=problem)


def parse_json(raw: bytes, path: Path) -> object:
    """The value of a tokenizer's JSON file."""
    return parse(raw, path, wrong=TokenizerError)


def parse_vocab(raw: bytes, path: Path) -> dict[str, int]:
    """A flat vocabulary, token -> id, with each id once."""
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
    """The left and right tokens of a merges file, in order."""
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
    """The native definition. TokenizerError if the two files do not fit together."""
    added = (AddedToken(EOD, vocab[EOD], True, False),) if EOD in vocab else ()
    try:
        return byte_level_spec(vocab, pairs, added, pattern="gpt2")
    except NotNativeError as error:
        raise TokenizerError(
            f"{vocab_path} with {merge_path}: {error}: text would be lost; give the two files of "
            "one byte-level tokenizer"
        ) from None


def warn_of_unreachable(spec: ByteLevelSpec, vocab_path: Path, merge_path: Path) -> None:
    """Warn of tokens that no text becomes, if they are many: the merges may be cut off."""
    is_made = np.zeros(len(spec.vocab), bool)
    is_made[spec.merges[:, 2]] = True
    lost = sum(len(spec.vocab[id_] or b"") > 1 for id_ in np.flatnonzero(~is_made).tolist())
    if lost > max(_FEW, len(spec.vocab) // 100):
        _log.warning(
            "no text becomes %s of the %s tokens of %s, which %s does not make: are these the two "
            "files of one tokenizer?",
            *(f"{lost:,}", f"{len(spec.vocab):,}", vocab_path, merge_path),
        )


_URL = "https://openaipublic.blob.core.windows.net/encodings/"
_END = "<|endoftext|>"


@dataclass(frozen=True)
class KnownVocabulary:
    """A vocabulary of ranks that is known by the sha256 of its file, with facts that are not in
    that.

    ``special`` has the ids of special tokens; ``mode`` is how the vocabulary's own tools treat one
    inside of a text. ``file`` is the name of tiktoken's file, "" if tiktoken has none.
    """

    name: str
    sha256: str
    pattern: str
    special: dict[str, int]
    file: str = ""
    form: NormalForm = ""
    mode: SpecialMode = "text"


_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_O200K = {_END: 199999, "<|endofprompt|>": 200018}
_HARMONY = {
    2: "return",
    3: "constrain",
    5: "channel",
    6: "start",
    7: "end",
    8: "message",
    12: "call",
}
_P50K_SHA = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_O200K_SHA = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_LLAMA3 = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *("<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"),
    *(f"<|reserved_special_token_{i}|>" for i in range(2, 246)),
)
_LLAMA4_TEXT = (
    *("<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"),
    *(f"<|text_post_train_reserved_special_token_{i}|>" for i in range(6)),
    *("<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"),
    *(f"<|text_post_train_reserved_special_token_{i}|>" for i in range(8, 69)),
)
_LLAMA4_VISION = (
    *("<|image_start|>", "<|image_end|>"),
    *(f"<|vision_reserved_special_token_{i}|>" for i in range(2)),
    *("<|tile_x_separator|>", "<|tile_y_separator|>"),
    *(f"<|vision_reserved_special_token_{i}|>" for i in range(2, 6)),
    *("<|image|>", "<|vision_reserved_special_token_6|>", "<|patch|>"),
    *(f"<|vision_reserved_special_token_{i}|>" for i in range(7, 1048)),
)
_LLAMA4 = (
    *("<|begin_of_text|>", "<|end_of_text|>", *_FIM),
    *(*_LLAMA4_TEXT, *_LLAMA4_VISION),
    *(f"<|reasoning_reserved_special_token_{i}|>" for i in range(8)),
    *("<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"),
    *(f"<|reserved_special_token_{i}|>" for i in range(904)),
)
_QWEN = (_END, "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))

# If several have the same file, a file without a name is taken for the first of them.
_PUBLISHED = (
    KnownVocabulary(
        "r50k_base",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        "gpt2",
        {_END: 50256},
        "r50k_base.tiktoken",
    ),
    KnownVocabulary("p50k_base", _P50K_SHA, "gpt2", {_END: 50256}, "p50k_base.tiktoken"),
    KnownVocabulary(
        "p50k_edit",
        _P50K_SHA,
        "gpt2",
        {_END: 50256, **{token: 50281 + i for i, token in enumerate(_FIM)}},
        "p50k_base.tiktoken",
    ),
    KnownVocabulary(
        "cl100k_base",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "cl100k",
        {
            _END: 100257,
            **{token: 100258 + i for i, token in enumerate(_FIM)},
            "<|endofprompt|>": 100276,
        },
        "cl100k_base.tiktoken",
    ),
    KnownVocabulary("o200k_base", _O200K_SHA, "o200k", _O200K, "o200k_base.tiktoken"),
    KnownVocabulary(
        "o200k_harmony",
        _O200K_SHA,
        "o200k",
        {
            **{f"<|reserved_{i}|>": i for i in range(200000, 201088) if i - 200000 not in _HARMONY},
            **{f"<|{token}|>": 200000 + i for i, token in _HARMONY.items()},
            "<|startoftext|>": 199998,
            **_O200K,
        },
        "o200k_base.tiktoken",
    ),
    KnownVocabulary(
        "Llama 3",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        "llama3",
        {token: 128000 + i for i, token in enumerate(_LLAMA3)},
    ),
    KnownVocabulary(
        "Llama 4",
        "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed",
        "o200k",
        {token: 200000 + i for i, token in enumerate(_LLAMA4)},
    ),
    KnownVocabulary(
        "Qwen",
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
        "qwen2",
        {token: 151643 + i for i, token in enumerate(_QWEN)},
        form="NFC",
        mode="encode",
    ),
)


def by_name(name: str) -> KnownVocabulary | None:
    """The encoding that tiktoken has under a name, or None."""
    return next(
        (encoding for encoding in _PUBLISHED if encoding.file and encoding.name == name.lower()),
        None,
    )


def by_content(raw: bytes) -> KnownVocabulary | None:
    """The vocabulary that a file is known to be, or None."""
    sha256 = hashlib.sha256(raw).hexdigest()
    return next((encoding for encoding in _PUBLISHED if encoding.sha256 == sha256), None)


def names() -> list[str]:
    """The names that ``by_name`` knows."""
    return [encoding.name for encoding in _PUBLISHED if encoding.file]


def read_published(encoding: KnownVocabulary) -> tuple[Path, bytes]:
    """The file of an encoding of tiktoken's, from tokpack's cache or tiktoken's own.

    TokenizerError if neither has it, with advice where to put it, and if it is another file.
    """
    path_here = hub.cache_folder(encoding.name) / encoding.file
    for path in (path_here, _cache_of_tiktoken(encoding.file)):
        if not path.is_file():
            continue
        raw = read_bytes(path)
        sha256 = hashlib.sha256(raw).hexdigest()
        if sha256 == encoding.sha256:
            return path, raw
        raise TokenizerError(
            f"{path}: not the file of the tokenizer {encoding.name} (sha256 {sha256}, expected "
            f"{encoding.sha256}): replace it by {_URL}{encoding.file}"
        )
    raise TokenizerError(
        f"tokenizer {encoding.name} is not on this machine: put {_URL}{encoding.file} into "
        f"{path_here.parent}, or give the path of {encoding.file} with {option('tokenizer')}; "
        "tiktoken's cache is read too (TIKTOKEN_CACHE_DIR)"
    )


def _cache_of_tiktoken(file: str) -> Path:
    """The path at which the package tiktoken keeps a file that it has downloaded."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    name = hashlib.sha1((_URL + file).encode(), usedforsecurity=False).hexdigest()
    return Path(folder) / name


_MAX_TOKEN = 4096  # bytes
_MAX_DIGITS = 9  # digits of a rank
_LINE = re.compile(rb"\s*[A-Za-z0-9+/]+={0,2} [0-9]+\s")
_DEFAULT_VOCAB_SIZE = 1 << 17
_DEFAULT_SPECIAL_TOKENS = 1000
_KEYS = {"rank", "token_bytes", "token_str"}
_KIMI, _KIMI_SPECIAL = "TikTokenTokenizer", 258  # Moonshot's class; its ids after the ranks
# The patterns of classes whose code is in a folder of ranks: for models of Moonshot and Zhipu.
_CUT_BY = {_KIMI: "kimi", "ChatGLM4Tokenizer": "llama3"}
_MEGATRON_SPECIAL = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
# The special tokens that a tekken.json before version 11 does not list.
_MISTRAL_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


@dataclass(frozen=True)
class _Ranks:
    """The tokens by rank, with None for a special token.

    The token of rank r has the id ``first_id + r``; ``special`` has ids without a rank.
    """

    tokens: list[bytes | None]
    first_id: int
    special: dict[str, int]
    pattern: str = ""  # if the file tells it
    form: NormalForm = ""


def from_name(encoding: KnownVocabulary, choice: TokenizerOptions) -> Tokenizer:
    """An encoding of tiktoken's, from a file on this machine."""
    path, raw = read_published(encoding)
    return from_file(raw, path, encoding.name, choice, encoding=encoding)


def from_file(
    raw: bytes,
    path: Path,
    name: str,
    choice: TokenizerOptions,
    *,
    encoding: KnownVocabulary | None = None,
    settings: Settings | None = None,
) -> Tokenizer:
    """A .tiktoken file of a known ``encoding``, known by its name or content, or else of a pattern.

    With a pattern it has the special tokens, and the EOD, of the ``settings`` beside it; if these
    name none, ``<|endoftext|>`` after its last rank.
    """
    encoding = encoding or by_content(raw)
    ranks = _parse(raw, path)
    of_class = _CUT_BY.get(settings.class_name) if settings else None
    pattern = encoding.pattern if encoding else of_class
    pattern = pattern if choice.pattern is None else choice.pattern
    if pattern is None:
        raise UsageError(
            f"{path}: a vocabulary of {len(ranks):,} ranks does not say how text is cut into "
            f"words: add {option('pattern')}, a name or an expression; names are "
            f"{', '.join(patterns.names())}"
        )
    special, mode = (encoding.special, encoding.mode) if encoding else ({}, "text")
    if settings and encoding is None and (listed := _listed(settings, len(ranks))):
        special, mode = listed, "encode"  # as the code in such a folder does
        if choice.eod_token is None and settings.eos in special:
            choice = choice._replace(eod_token=settings.eos)
    tokens = _by_rank(ranks, special, path)
    form = encoding.form if encoding else ""
    vocabulary = _Ranks(tokens, 0, special or {EOD_NAMES[0]: len(tokens)}, pattern, form)
    tokenizer = _tokenizer(vocabulary, path, name, choice.special or mode, choice)
    tokenizer.arguments = {"pattern": choice.pattern} if choice.pattern else {}
    return tokenizer


def _listed(settings: Settings, first: int) -> dict[str, int]:
    """The special tokens that a config lists after ``first`` ranks, by their ids.

    The ids in between get tokens without a name, because the model has these ids. TokenizerError
    for tokens that no vocabulary of ranks can have.
    """
    special: dict[str, int] = {}
    for number, token in settings.listed:
        text = token["content"]
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise TokenizerError(
                f"{settings.where}: {text} is found by the text around it (lstrip, rstrip or "
                "single_word), which a vocabulary of ranks has no means for"
            )
        if text in special or number < first:
            what = "there twice" if text in special else f"below the {first:,} of the ranks"
            raise TokenizerError(f"{settings.where}: {text} with the id {number:,} is {what}")
        special[text] = number
    if not special:
        return {}
    end = max(special.values()) + 1
    if settings.class_name == _KIMI:
        end = max(end, first + _KIMI_SPECIAL)
    taken = set(special.values())
    special |= {f"<|reserved_token_{i}|>": i for i in range(first, end) if i not in taken}
    if lacking := [text for text in settings.texts() if text not in special]:
        raise TokenizerError(
            f"{settings.where}: {lacking[0]} is not in its added_tokens_decoder, so it has no id"
        )
    return special


def from_tekken(
    definition: dict[str, Any], path: Path, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """Mistral's tekken.json, whose tools leave special tokens in texts as text."""
    return _tokenizer(_read_tekken(definition, path), path, name, "text", choice)


def from_list(
    definition: list[Any],
    path: Path,
    name: str,
    choice: TokenizerOptions,
    *,
    vocab_size: int | None,
    special_tokens: int | None,
) -> Tokenizer:
    """The list that Megatron-LM's TikTokenizer reads, with its defaults."""
    pattern = choice.pattern or "v2"
    size = vocab_size or _DEFAULT_VOCAB_SIZE
    count = _DEFAULT_SPECIAL_TOKENS if special_tokens is None else special_tokens
    ranks = replace(
        _read_list(definition, path, vocab_size=size, special_tokens=count), pattern=pattern
    )
    eod_token = "</s>" if choice.eod_token is None else choice.eod_token
    tokenizer = _tokenizer(ranks, path, name, "encode", choice._replace(eod_token=eod_token))
    tokenizer.arguments = {
        "tokenizer_type": "TikTokenizer",
        "pattern": pattern,
        "vocab_size": size,
        "special_tokens_count": count,
    }
    return tokenizer


def _tokenizer(
    ranks: _Ranks, path: Path, name: str, mode: SpecialMode, choice: TokenizerOptions
) -> Tokenizer:
    """A tokenizer of the native core if that understands the pattern, else of the library."""
    pre_tokenizer = patterns.pre_tokenizer_of(ranks.pattern)
    spec = _spec(ranks, path)
    try:
        pattern = patterns.recognize(pre_tokenizer)
    except NotNativeError as reason:
        tokenizer = HuggingFaceTokenizer(
            name,
            to_json(spec, pre_tokenizer),
            raw_of_text=to_json(replace(spec, added=()), pre_tokenizer),
            why_not_native=str(reason).replace("its pre_tokenizer", "its pattern"),
            eod_token=choice.eod_token,
        )
        tokenizer.special_tokens_default = mode
        return tokenizer
    named = patterns.is_name(pattern)
    definition = "" if named else digest_of(json.loads(to_json(spec, pre_tokenizer)))
    spec = replace(spec, pattern=pattern, definition=definition)
    return NativeTokenizer(name, spec, special_tokens_default=mode, eod_token=choice.eod_token)


def _spec(ranks: _Ranks, path: Path) -> ByteLevelSpec:
    """The definition of a vocabulary.

    As in tiktoken, a piece of text that is a token becomes this token, even if merging would not
    make it.
    """
    tokens, special, first_id = ranks.tokens, ranks.special, ranks.first_id
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
        form=ranks.form,
        ignore_merges=bool(unmergeable),
    )


def is_ranks(raw: bytes) -> bool:
    """Whether a file begins with a line like those of tiktoken's files."""
    return _LINE.match(raw[: 2 * _MAX_TOKEN] + b"\n") is not None


def _parse(raw: bytes, path: Path) -> dict[bytes, int]:
    """Token -> rank, with each rank once. TokenizerError names the line that is wrong."""
    ranks: dict[bytes, int] = {}
    lines: dict[int, int] = {}  # the line of each rank
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
        if not token or len(token) > _MAX_TOKEN:
            reason = f"a token has 1 to {_MAX_TOKEN} bytes, not {len(token):,}"
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


def _by_rank(
    ranks: Mapping[bytes, int], special: Mapping[str, int], path: Path
) -> list[bytes | None]:
    """The tokens in the order of their ranks. TokenizerError for a rank without a token."""
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


def is_tekken(definition: object) -> bool:
    """Whether a JSON value is a tekken.json."""
    return (
        isinstance(definition, dict)
        and isinstance(definition.get("config"), dict)
        and isinstance(definition.get("vocab"), list)
    )


def _read_tekken(definition: dict[str, Any], path: Path) -> _Ranks:
    """The pattern, the special tokens, and as many tokens as its size says."""
    config = definition["config"]
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise TokenizerError(f"{path}: its config has no pattern")
    size = _count(config, "default_vocab_size", path)
    first = _count(config, "default_num_special_tokens", path)
    listed = definition.get("special_tokens")
    special = {token: i for i, token in enumerate(_MISTRAL_SPECIAL)}
    if listed is not None:
        special = _special(listed, path)
    if any(token_id >= first for token_id in special.values()):
        raise TokenizerError(
            f"{path}: has special tokens with ids from {first} on, where others are"
        )
    return _Ranks(_tokens(definition["vocab"], size - first, path), first, special, pattern)


def _read_list(
    definition: list[Any], path: Path, *, vocab_size: int, special_tokens: int
) -> _Ranks:
    """The ranks of a list, whose first ids are special tokens."""
    if not len(_MEGATRON_SPECIAL) <= special_tokens < vocab_size:
        raise TokenizerError(
            f"{special_tokens} special tokens are not possible: at least {len(_MEGATRON_SPECIAL)}, "
            f"and fewer than the {vocab_size} ids of the vocabulary"
        )
    more = (f"<SPECIAL_{i}>" for i in range(len(_MEGATRON_SPECIAL), special_tokens))
    special = {token: i for i, token in enumerate((*_MEGATRON_SPECIAL, *more))}
    tokens = _tokens(definition, vocab_size - special_tokens, path)
    return _Ranks(tokens, special_tokens, special)


def _count(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 0:
        raise TokenizerError(f"{path}: {key} of its config is {brief(value)}, not a count")
    return value


def _special(listed: Any, path: Path) -> dict[str, int]:
    result: dict[str, int] = {}
    for number, token in enumerate(listed if isinstance(listed, list) else [listed]):
        entry = token if isinstance(token, dict) else {}
        text, rank = entry.get("token_str"), entry.get("rank")
        if not isinstance(text, str) or not text or type(rank) is not int or rank < 0:
            raise TokenizerError(f"{path}: special token {number} is {brief(token)}")
        if text in result or rank in result.values():
            raise TokenizerError(f"{path}: special token {number}, {text!r}, is there twice")
        result[text] = rank
    return result


def _tokens(vocab: list[Any], count: int, path: Path) -> list[bytes | None]:
    """The first ``count`` tokens, which must have the ranks 0, 1, 2, ..."""
    if not 0 < count <= len(vocab):
        raise TokenizerError(
            f"{path}: has {len(vocab)} tokens, and its vocabulary takes {count} beside special "
            f"tokens; give the number of ids with {option('vocab_size')}"
        )
    tokens: dict[bytes, int] = {}
    for rank, entry in enumerate(vocab[:count]):
        if not isinstance(entry, dict) or not entry.keys() <= _KEYS or entry.get("rank") != rank:
            raise TokenizerError(f"{path}: token {rank} is {brief(entry)}, not of the rank {rank}")
        try:
            token = binascii.a2b_base64(entry["token_bytes"], strict_mode=True)
        except (KeyError, TypeError, ValueError):
            raise TokenizerError(f"{path}: token {rank} is {brief(entry)}, not base64") from None
        if not token or token in tokens:
            raise TokenizerError(f"{path}: token {rank}, {token!r}, is empty or there twice")
        tokens[token] = rank
    return list(tokens)
