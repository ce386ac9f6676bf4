"""Find a tokenizer by name, by path, or by the flags of other preprocessors."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from functools import partial
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tokpack.errors import FormatError, InputError, TokenizerError, TokpackError, UsageError, option
from tokpack.machine import cache_root
from tokpack.storage import is_url, near, shown
from tokpack.storage.disk import read_json, replace_file
from tokpack.tokenizers import definition as spec_cache
from tokpack.tokenizers import hub, patterns, ranks
from tokpack.tokenizers.base import TokenizerOptions, find_copies
from tokpack.tokenizers.definition import (
    ByteLevelSpec,
    JsonSpec,
    NotNativeError,
    to_json,
)
from tokpack.tokenizers.folder import (
    CONFIG,
    GPT2_FILES,
    JSON_FILES,
    MODEL_FILES,
    NAMED,
    SETTINGS,
    Definition,
    FolderReader,
    Settings,
    TokenizerFolder,
    beside,
    find,
    settings_in,
)
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer, check_definition
from tokpack.tokenizers.native import JsonTokenizer, NativeTokenizer
from tokpack.tokenizers.ranks import (
    EOD,
    parse_json,
    parse_merges,
    parse_vocab,
    read_bytes,
    spec_from_files,
    warn_of_unreachable,
)
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from tokpack.tokenizers.tokenizer_json import spec_of
from tokpack.tokenizers.words import CharLevelTokenizer, WhitespaceTokenizer, check_vocab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Unpack

    import tokenizers
    import transformers

    from tokpack.storage import PathLike
    from tokpack.tokenizers.base import SpecialMode, Tokenizer
    from tokpack.tokenizers.definition import BpeSpec, NormalForm

    TokenizerLike = PathLike | tokenizers.Tokenizer | transformers.PreTrainedTokenizerBase


_SHOWN = 4  # tokens in a message


def from_path(path: Path, name: str, choice: TokenizerOptions) -> Tokenizer:
    """The tokenizer of a file alone, or of its folder with everything in that."""
    if path.is_dir():
        folder = find(path)
        if folder is None:
            raise TokenizerError(
                f"{path}: the folder has no tokenizer.json, no vocab.json with merges.txt, no "
                "tokenizer.model, no tekken.json and no .tiktoken file, or several of one kind"
            )
    else:
        settings = settings_in(path.parent) if choice.with_folder else {}
        folder = TokenizerFolder({path.name: path}, settings)
    return from_folder(folder, name, choice)


def from_folder(folder: TokenizerFolder, name: str, choice: TokenizerOptions) -> Tokenizer:
    """The tokenizer of the files of a folder. TokenizerError."""
    main = tuple(folder.main.values())
    settings = Settings(folder.settings)
    if choice.with_folder and choice.eod_token is None and settings.eos is not None:
        choice = choice._replace(eod_token=settings.eos)
    if len(main) == 2 and not folder.settings:
        tokenizer = from_gpt2_files(main[0], main[1], name, choice)
    elif len(main) == 2:
        tokenizer = _from_gpt2_folder(main[0], main[1], settings, name, choice)
    else:
        tokenizer = _from_file(main[0], settings, name, choice)
    tokenizer.files = {**folder.main, **folder.settings}
    if lacking := beside(tokenizer):
        tokenizer.notes = (
            f"{main[0]} is read alone: the files beside it have {len(lacking):,} more tokens, such "
            f"as {', '.join(lacking[:_SHOWN])}; name the folder, {main[0].parent}, for them",
        )
    return tokenizer


def _from_file(path: Path, settings: Settings, name: str, choice: TokenizerOptions) -> Tokenizer:
    raw = read_bytes(path)
    if ranks.is_ranks(raw) or path.suffix == ".tiktoken":
        return ranks.from_file(raw, path, name, choice, settings=settings)
    _refuse_pattern(path, choice)
    if _is_sentencepiece(raw) or path.suffix == ".model":
        tokenizer = SentencePieceTokenizer(name, raw, eod_token=choice.eod_token)
        _refuse_settings(tokenizer, path, settings)
        return tokenizer
    if not settings.files:
        return from_json(Definition(raw, path), path, name, choice)
    return _from_json_folder(FolderReader(raw, path, settings), path, settings, name, choice)


def _from_json_folder(
    reader: FolderReader, path: Path, settings: Settings, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """The tokenizer of a tokenizer.json with the files beside it."""
    if settings.config.get("split_special_tokens") and choice.special is None:
        choice = choice._replace(special="text")
    tokenizer = from_json(reader.definition, path, name, choice)
    tokenizer.notes = tuple(reader.notes(tokenizer))
    return tokenizer


def _refuse_settings(tokenizer: SentencePieceTokenizer, path: Path, settings: Settings) -> None:
    """Raise TokenizerError for a config that names a class or more tokens beside a SentencePiece
    model: its library cannot encode these, and the class has other ids.
    """
    more = [text for text in settings.texts() if tokenizer.token_to_id(text) is None]
    padding = settings.named.get("pad_token", {}).get("content")
    if more == [padding]:  # it never occurs in a text
        more = []
    if more or settings.class_name:
        named = ", ".join(more[:_SHOWN]) or settings.class_name
        raise TokenizerError(
            f"{settings.where} names {named}, so transformers makes another tokenizer of the "
            f"SentencePiece model {path.name}, with other ids for blanks and special tokens at "
            "least: give a folder with the tokenizer.json that "
            "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) of transformers writes, or "
            f"{path} for the model alone, as Megatron-LM reads it"
        )


def _refuse_pattern(path: Path, choice: TokenizerOptions) -> None:
    if choice.pattern is not None:
        raise UsageError(
            f"{path}: its pattern cannot be chosen: {option('pattern')} is for a .tiktoken file, "
            "which does not say it"
        )


def _is_sentencepiece(raw: bytes) -> bool:
    """Whether a file begins like a SentencePiece model: with a piece, its text and its score."""
    if raw[:1] != b"\n":  # the key of field 1, a message with a length
        return False
    at = 1
    while raw[at : at + 1] >= b"\x80" and at < 5:
        at += 1
    text = raw[at + 1 : at + 3]
    return text[:1] == b"\n" and text[1:] < b"\x80" and raw[at + 3 + text[-1] :][:1] == b"\x15"


def from_json(definition: Definition, path: Path, name: str, choice: TokenizerOptions) -> Tokenizer:
    """The tokenizer of a tokenizer.json, or of a tekken.json. TokenizerError."""
    if not definition.key.strip():
        raise TokenizerError(f"{path}: the file is empty")

    def read() -> BpeSpec:
        value = _tokenizer_json(definition.read(), path)
        check_definition(value, f"tokenizer {name}")
        return spec_of(value)

    try:
        spec = spec_cache.kept(definition.key, read)
    except _TekkenFound as other:
        return ranks.from_tekken(other.definition, path, name, choice)
    except NotNativeError as reason:
        tokenizer: Tokenizer = HuggingFaceTokenizer(
            name, definition.raw, why_not_native=str(reason), eod_token=choice.eod_token
        )
        tokenizer.special_tokens_default = choice.special or "encode"
        return tokenizer
    if isinstance(spec, ByteLevelSpec) and not spec.changes_text:
        return NativeTokenizer(
            name,
            spec,
            reference=definition,
            special_tokens_default=choice.special or "encode",
            eod_token=choice.eod_token,
        )
    assert isinstance(spec, ByteLevelSpec | JsonSpec)
    tokenizer = JsonTokenizer(name, definition, spec, eod_token=choice.eod_token)
    tokenizer.special_tokens_default = choice.special or "encode"
    return tokenizer


class _TekkenFound(Exception):  # noqa: N818 - not an error
    """The file is a tekken.json, and so must not be read, and kept in the cache, as a
    tokenizer.json.
    """

    def __init__(self, definition: dict[str, Any]) -> None:
        super().__init__()
        self.definition = definition


def _tokenizer_json(definition: Any, path: Path) -> dict[str, Any]:
    """The object of a tokenizer.json. TokenizerError for another kind of file, _TekkenFound for
    that.
    """
    if ranks.is_tekken(definition):
        raise _TekkenFound(definition)
    if isinstance(definition, list):
        raise TokenizerError(
            f"{path}: a JSON list: if it is the vocabulary of a TikTokenizer, add "
            f"{option('tokenizer_type', 'TikTokenizer')}"
        )
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        raise TokenizerError(
            f"{path}: not a tokenizer.json (it has no model); a vocab.json needs its merges: add "
            f"{option('merge_file')}; a vocabulary of words needs "
            f"{option('tokenizer_type', 'Whitespace')}"
        )
    return definition


def _from_gpt2_folder(
    vocab_file: Path, merge_file: Path, settings: Settings, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """The tokenizer of a folder with GPT-2's two files: the tokenizer.json that its class makes of
    them.
    """
    _refuse_pattern(vocab_file, choice)
    pattern, form = _of_class(settings)
    vocab = parse_vocab(read_bytes(vocab_file), vocab_file)
    merges = parse_merges(read_bytes(merge_file), merge_file)
    spec = spec_from_files(vocab, merges, vocab_file, merge_file)
    warn_of_unreachable(spec, vocab_file, merge_file)
    cutter = patterns.pre_tokenizer_of(pattern)
    raw = to_json(replace(spec, added=(), form=form), cutter)
    reader = FolderReader(raw, vocab_file, settings, is_made=True)
    return _from_json_folder(reader, vocab_file, settings, name, choice)


# The patterns and normal forms of the classes of transformers that read GPT-2's two files.
_CUT_BY: dict[str, tuple[str, NormalForm]] = {
    "": ("gpt2", ""),
    "GPT2Tokenizer": ("gpt2", ""),
    "CodeGenTokenizer": ("gpt2", ""),
    "PreTrainedTokenizer": ("gpt2", ""),
    "Qwen2Tokenizer": ("qwen2", "NFC"),
    "Qwen3_5Tokenizer": ("qwen35", "NFC"),
}


def _of_class(settings: Settings) -> tuple[str, NormalForm]:
    """The pattern and the normal form of the class that a folder names. TokenizerError."""
    name = settings.class_name
    if name not in _CUT_BY:
        raise TokenizerError(
            f"{settings.where}: {name} cuts text in a way that its vocab.json and merges.txt do "
            "not say: give a folder with the tokenizer.json that "
            "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) of transformers writes"
        )
    return _CUT_BY[name]


def from_gpt2_files(
    vocab_file: Path, merge_file: Path, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """The tokenizer of GPT-2's two files. TokenizerError if they are of two tokenizers."""
    _refuse_pattern(vocab_file, choice)
    raw_vocab, raw_merges = read_bytes(vocab_file), read_bytes(merge_file)

    def read() -> BpeSpec:
        vocab = parse_vocab(raw_vocab, vocab_file)
        return spec_from_files(vocab, parse_merges(raw_merges, merge_file), vocab_file, merge_file)

    spec = spec_cache.kept(b"%d\n%b%b" % (len(raw_vocab), raw_vocab, raw_merges), read)
    assert isinstance(spec, ByteLevelSpec)
    warn_of_unreachable(spec, vocab_file, merge_file)
    return NativeTokenizer(
        name,
        spec,
        reference=(raw_vocab, raw_merges),
        special_tokens_default=choice.special or "text",
        eod_token=choice.eod_token,
    )


# A tokenizer object of another library is written to a folder, and read from there. So workers,
# manifests and a run that is resumed know it as they know every other tokenizer: by files. The
# folder is in the cache, and its name is the checksum of its content.


def path_of(name: str, value: TokenizerLike) -> str:
    """The name or path of a tokenizer, as a string; for an object, the folder that it is written
    to.

    ``name`` is that of the option. UsageError for an object that is no tokenizer, or has no
    tokenizer.json.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    backend = getattr(value, "backend_tokenizer", value)
    if not hasattr(backend, "to_str"):
        kind = type(value).__name__
        if not hasattr(value, "convert_tokens_to_ids"):
            raise UsageError(
                f"{option(name)} is a {kind}: give a name, a path, a tokenizer of transformers or "
                "a tokenizers.Tokenizer"
            )
        raise UsageError(
            f"{option(name)} is a {kind}, which has no tokenizer.json: give the folder or the name "
            "that it was loaded from"
        )
    definition = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    files = {JSON_FILES[0]: json.dumps(definition).encode()}
    if backend is not value:
        files[CONFIG] = json.dumps(_config(value, backend)).encode()
    digest = hashlib.sha256(b"".join(files.values())).hexdigest()[:32]
    label = os.path.basename(os.path.normpath(getattr(value, "name_or_path", "") or "tokenizer"))
    try:
        folder = cache_root() / "tokenizers" / "objects" / digest / label
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            if not (folder / file).is_file() or (folder / file).read_bytes() != content:
                replace_file(folder / file, [content], fsync=False)
    except (OSError, RuntimeError) as error:
        raise TokenizerError(
            f"cannot write the tokenizer to the cache: {error}; set TOKPACK_CACHE to a folder that "
            "can be written"
        ) from None
    return str(folder)


def _config(value: Any, backend: Any) -> dict[str, Any]:
    """The settings of a tokenizer of transformers, besides its definition."""
    config: dict[str, Any] = {key: getattr(value, key, None) for key in NAMED}
    config = {key: str(token) for key, token in config.items() if token is not None}
    if backend.encode_special_tokens:
        config["split_special_tokens"] = True
    if template := getattr(value, "chat_template", None):
        config["chat_template"] = template
    return config


_WITH_MERGES = (None, "gpt2", "huggingface")
_VOCAB_FILE, _MODEL = option("vocab_file"), option("tokenizer_model")
_TOKENIZER, _TWO_FILES = option("tokenizer"), f"{_VOCAB_FILE} and {option('merge_file')}"
_OPTIONS = {
    "huggingface": _VOCAB_FILE,
    "sentencepiece": _MODEL,
    "whitespace": _VOCAB_FILE,
    "ranks in a list": _MODEL,
    "tiktoken": f"{_VOCAB_FILE} with the name of an encoding, such as cl100k_base",
}
_BESIDE = (
    "{}: tokenizer type {} also reads the tokenizer_config.json beside it: copy both to a folder "
    "of a disk"
)
_WHOLE_HUB = (*SETTINGS, "chat_template.jinja")  # files of a repository besides the tokenizer's
_FROM_TRANSFORMERS = ("huggingfacetokenizer", "pretrainedfromhf")


@dataclass(frozen=True)
class NamedTokenizer:
    """A tokenizer with a name of its own; ``digest`` is that of its definition in every copy."""

    name: str
    repository: str
    aliases: tuple[str, ...]
    files: tuple[str, ...]
    options: str
    digest: str


_NAMED = (
    NamedTokenizer(
        name="gpt2",
        repository="openai-community/gpt2",
        aliases=("gpt-2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
        files=("vocab.json", "merges.txt"),
        options=_TWO_FILES,
        digest="0ba1f2a060ea18581f6dfaef20810814d86a5cd717a0b402b38fc8b1c4015325",
    ),
    NamedTokenizer(
        name="neox",
        repository="EleutherAI/gpt-neox-20b",
        aliases=("20b", "neox20b", "neox-20b", "gpt-neox", "gpt-neox-20b"),
        files=("tokenizer.json",),
        options=_VOCAB_FILE,
        digest="920add742bd97b335bab4c3315ff54e9afbb7c9accd1ac97ef044a8af1daad92",
    ),
)

# The tokenizer types of Megatron-LM, GPT-NeoX and the Megatron-DeepSpeed forks.
_TYPES = {
    "gpt2bpetokenizer": "gpt2",
    "hfgpt2tokenizer": "gpt2",
    "hfgpt2tokenizerfast": "gpt2",
    "hftokenizer": "huggingface",
    "huggingfacetokenizer": "huggingface",
    "pretrainedfromhf": "huggingface",
    "sentencepiecetokenizer": "sentencepiece",
    "gptsentencepiecetokenizer": "sentencepiece",
    "spmtokenizer": "sentencepiece",
    "llama2tokenizer": "sentencepiece",
    "tiktokenizer": "ranks in a list",
    "tiktokentokenizer": "tiktoken",
    "charleveltokenizer": "bytes",
    "whitespace": "whitespace",
    "whitespacetokenizer": "whitespace",
}


class TokenizerFiles(TypedDict, total=False):
    """A tokenizer by the arguments of load_tokenizer: those for which commands on datasets have
    flags.
    """

    tokenizer: TokenizerLike | None
    vocab_file: PathLike | None
    merge_file: PathLike | None
    tokenizer_type: str | None
    tokenizer_model: PathLike | None
    pattern: str | None


TOKENIZER_PATHS = ("tokenizer", "vocab_file", "merge_file", "tokenizer_model")  # or names


def load_tokenizer(
    tokenizer: TokenizerLike | None = None,
    *,
    vocab_file: PathLike | None = None,
    merge_file: PathLike | None = None,
    tokenizer_type: str | None = None,
    tokenizer_model: PathLike | None = None,
    eod_token: str | int | None = None,
    pattern: str | None = None,
    vocab_size: int | None = None,
    special_tokens_count: int | None = None,
    name: PathLike | None = None,
) -> Tokenizer:
    """Load a tokenizer; GPT-2's by default.

    ``tokenizer`` is a name (gpt2, neox, cl100k_base, a Hugging Face repository as owner/name), a
    path (a tokenizer.json, a .tiktoken file, a tekken.json, a SentencePiece model, a folder with
    one of them or with vocab.json and merges.txt; the URL of such a file), or an object: a fast
    tokenizer of transformers, a ``tokenizers.Tokenizer``. A folder includes all that its
    tokenizer_config.json adds; a file that is named is only that file. ``vocab_file`` is a
    tokenizer.json, or goes with a ``merge_file``; ``tokenizer_model`` is as ``tokenizer``;
    ``tokenizer_type`` is one of the other preprocessors' names, or ``Whitespace``. ``eod_token`` is
    the end-of-document token, or its id in digits, if it is not one of the usual ones. ``pattern``
    says how text is cut into words, by a name or an expression, for a .tiktoken file.
    ``vocab_size`` (ids) and ``special_tokens_count`` are for the type TikTokenizer. ``name`` is the
    former name of ``tokenizer``.

    Raises UsageError for a request that contradicts itself, TokenizerError for a tokenizer that is
    unknown, incomplete or contradictory.
    """
    kind = _kind(tokenizer_type)
    if kind == "bytes":
        return CharLevelTokenizer(eod_token)
    named = [] if tokenizer is None else [path_of("tokenizer", tokenizer)]
    named += [fspath(one) for one in (name, tokenizer_model, vocab_file) if one is not None]
    source = _only_one(named, kind, tokenizer_type)
    if merge_file is not None and (vocab_file is None or kind not in _WITH_MERGES):
        raise UsageError(
            f"the merges {shown(fspath(merge_file))} go with a {_VOCAB_FILE} of GPT-2's form only"
        )
    path, source = _near(source), shown(source) if is_url(source) else source
    type_name = (tokenizer_type or "").lower()
    # GPT-2 in transformers encodes special tokens, in Megatron it takes them for text.
    special: SpecialMode | None = "encode" if type_name.startswith("hfgpt2") else None
    choice = TokenizerOptions(special, eod_token, pattern, type_name in _FROM_TRANSFORMERS)
    if kind in ("ranks in a list", "sentencepiece", "whitespace"):
        if kind == "ranks in a list":
            typed: Tokenizer = ranks.from_list(
                _read_list(path),
                path,
                source,
                choice,
                vocab_size=vocab_size,
                special_tokens=special_tokens_count,
            )
        elif pattern is not None:
            raise UsageError(f"{source}: {option('pattern')} is for a .tiktoken file")
        else:
            typed = _from_typed_file(path, source, type_name, eod_token)
        typed.files = {path.name: path}
        return typed
    if choice.with_folder and is_url(source):
        raise UsageError(_BESIDE.format(source, tokenizer_type))
    if merge_file is not None:
        files = TokenizerFolder.alone(path, _near(fspath(merge_file)))
        return from_folder(files, source, choice)
    if is_url(source) or (vocab_file is not None and kind != "tiktoken"):
        return from_path(path, source, choice)
    return _from_name(source, choice)


def _only_one(named: list[str], kind: str | None, tokenizer_type: str | None) -> str:
    """The only tokenizer that a request names, or GPT-2's if it names none. UsageError."""
    if len(named) > 1:
        raise UsageError(
            f"more than one tokenizer is given ({', '.join(map(shown, named))}): "
            f"keep one of {_TOKENIZER}, {_MODEL} and {_VOCAB_FILE}"
        )
    if not named and kind not in (None, "gpt2"):
        raise UsageError(f"tokenizer type {tokenizer_type} needs its file: add {_OPTIONS[kind]}")
    return named[0] if named else "gpt2"


def _near(name: str) -> Path:
    """The file on this machine with a name that may be that of a file."""
    try:
        return Path(near(name))
    except FileNotFoundError:
        raise TokenizerError(
            f"{shown(name)}: no such object: name the file of a tokenizer, not a folder"
        ) from None


def _kind(tokenizer_type: str | None) -> str | None:
    if tokenizer_type is None:
        return None
    kind = _TYPES.get(tokenizer_type.lower())
    if kind is None:
        raise UsageError(
            f"tokenizer type '{tokenizer_type}' is not supported: give the tokenizer as a "
            f"tokenizer.json with {_TOKENIZER}, or use one of the types GPT2BPETokenizer, "
            "HFTokenizer, HFGPT2Tokenizer, HuggingFaceTokenizer, PretrainedFromHF, "
            "SentencePieceTokenizer, GPTSentencePieceTokenizer, SPMTokenizer, Llama2Tokenizer, "
            "TikTokenizer, TiktokenTokenizer, CharLevelTokenizer, Whitespace"
        )
    return kind


def is_at_hand(name: str) -> bool:
    """Whether a name means the same tokenizer for everybody, and needs no download."""
    named = _named(name)
    return ranks.by_name(name) is not None if named is None else _folder(named) is not None


def _named(name: str) -> NamedTokenizer | None:
    names = ((one, (one.name, one.repository.lower(), *one.aliases)) for one in _NAMED)
    return next((one for one, its_names in names if name.lower() in its_names), None)


def _from_name(name: str, choice: TokenizerOptions) -> Tokenizer:
    named = _named(name)
    if named is not None:
        return _from_named(named, choice)
    encoding = ranks.by_name(name)
    if encoding is not None:
        return ranks.from_name(encoding, choice)
    path = Path(name)
    if path.exists():
        return from_path(path, name, choice)
    if not hub.is_repository(name) or path.suffix in (".json", ".model"):
        raise TokenizerError(
            f"tokenizer '{name}' is unknown: no such file or folder, and no name; names are "
            f"{', '.join([*(k.name for k in _NAMED), *ranks.names()])}, and Hugging Face "
            "repositories as owner/name"
        )
    cache = hub.cache_folder(name)
    for folder in (cache, *hub.hub_snapshots(name)):
        if find(folder):
            tokenizer = from_path(folder, name, choice)
            if folder != cache and CONFIG not in hub.known_files(folder):
                tokenizer.notes += (
                    f"{folder} has no {CONFIG}, which nobody has asked the hub for: if {name} has "
                    "one, its tokens are missing here",
                )
            return tokenizer
    choices = [JSON_FILES[:1], GPT2_FILES[0], MODEL_FILES[:1]]
    try:
        hub.download(name, choices, cache, beside=_WHOLE_HUB)
    except hub.UnavailableError as error:
        raise TokenizerError(
            f"tokenizer {name} is not on this machine, and cannot be downloaded: {error}. Put its "
            f"tokenizer.json into {cache}, or give a path to it with {_TOKENIZER}"
        ) from None
    return from_path(cache, name, choice)


def _from_named(named: NamedTokenizer, choice: TokenizerOptions) -> Tokenizer:
    def load(folder: Path) -> Tokenizer:
        files = TokenizerFolder.alone(*(folder / file for file in named.files))
        tokenizer = from_folder(files, named.name, choice)
        if tokenizer.definition_digest() != named.digest:
            raise TokenizerError(
                f"{folder}: {' and '.join(named.files)} are not those of the tokenizer {named.name}"
                f" (sha256 of the definition {tokenizer.definition_digest()}, expected "
                f"{named.digest}): replace them, or give their path if you want this one"
            )
        return tokenizer

    if folder := _folder(named):
        return load(folder)
    cache = hub.cache_folder(named.name)
    try:
        hub.download(named.repository, [named.files], cache, check=load)
    except hub.UnavailableError as error:
        raise TokenizerError(
            f"tokenizer {named.name} is not on this machine, and cannot be downloaded: {error}. "
            f"Put {' and '.join(named.files)} of https://huggingface.co/{named.repository} into "
            f"{cache}, or give the path with {named.options}"
        ) from None
    return load(cache)


def named_tokenizers() -> dict[str, tuple[Path | None, str]]:
    """The tokenizers that are downloaded at their first use: their local folder, and what they
    need.

    The folder is None if they are not on this machine.
    """
    return {
        one.name: (
            _folder(one),
            f"{' and '.join(one.files)} of https://huggingface.co/{one.repository} "
            f"in {hub.cache_folder(one.name)}",
        )
        for one in _NAMED
    }


def _folder(named: NamedTokenizer) -> Path | None:
    """The folder on this machine with a tokenizer's files, or None."""
    repositories = (named.repository, named.repository.split("/")[1])
    snapshots = [folder for name in repositories for folder in hub.hub_snapshots(name)]
    folders = (hub.cache_folder(named.name), *snapshots)
    whole = (one for one in folders if all((one / file).is_file() for file in named.files))
    return next(whole, None)


def _from_typed_file(
    path: Path, name: str, type_name: str, eod_token: str | int | None
) -> Tokenizer:
    """A vocabulary of words, or a SentencePiece model, as the type says."""
    raw = read_bytes(path)
    if _TYPES[type_name] == "whitespace":
        vocab = parse_vocab(raw, path)
        check_vocab(vocab, str(path))
        return WhitespaceTokenizer(name, vocab, eod_token=eod_token)
    tokenizer = SentencePieceTokenizer(name, raw, eod_token=eod_token)
    if type_name == "spmtokenizer" and eod_token is None:
        # GPT-NeoX ends documents with this piece, if there is one, whatever the model says.
        tokenizer.eod_id = tokenizer.token_to_id(EOD)
        tokenizer.arguments = {"tokenizer_type": "SPMTokenizer"}
    return tokenizer


def _read_list(path: Path) -> list[Any]:
    definition = parse_json(read_bytes(path), path)
    if not isinstance(definition, list):
        raise TokenizerError(
            f"{path}: not a vocabulary of Megatron-LM's TikTokenizer, which is a JSON list; "
            f"give other files with {_TOKENIZER} alone"
        )
    return definition


_TYPES_OF_KINDS = {"whitespace vocabulary": "Whitespace", "SentencePiece": "SentencePieceTokenizer"}
_ARGUMENTS = {"tokenizer_type": str, "pattern": str, "vocab_size": int, "special_tokens_count": int}


def arguments_of(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of load_tokenizer in a description, besides the name; unknown ones are left
    out.
    """
    arguments = (entry or {}).get("arguments")
    values = arguments if isinstance(arguments, dict) else {}
    return {key: values[key] for key, kind in _ARGUMENTS.items() if type(values.get(key)) is kind}


def load_described(entry: Mapping[str, Any], folder: str = "") -> Tokenizer:
    """The tokenizer that a manifest or a checkpoint describes; its files may be in ``folder``.

    Anybody may have written the description. So its files are found by their checksums on this
    machine, or by a name that tokpack knows. TokenizerError if there is no such tokenizer.
    """
    reason = "what is there now is another one (its sha256 differs)"
    eod = entry.get("eod_id")
    for load in _loaders(entry, folder, eod if type(eod) is int else None):
        try:
            tokenizer = load()
        except (TokpackError, OSError) as error:
            reason = str(error) if isinstance(error, OSError) else error.args[0]
            continue
        if tokenizer.fingerprint == entry.get("sha256"):
            tokenizer.name = str(entry.get("name", ""))
            return tokenizer
    raise TokenizerError(reason)


def _loaders(
    entry: Mapping[str, Any], folder: str, eod: int | None
) -> Iterator[Callable[[], Tokenizer]]:
    """Functions that may load a described tokenizer, the most likely first. TokenizerError."""
    name, arguments = str(entry.get("name", "")), arguments_of(entry)
    if arguments.get("tokenizer_type") == "CharLevelTokenizer":
        yield partial(load_tokenizer, **arguments, eod_token=eod)
        return
    folders = [folder] if folder else []
    if hub.is_repository(name):
        folders += map(str, (hub.cache_folder(name), *hub.hub_snapshots(name)))
    try:
        files = find_copies(entry.get("files"), folders)
    except TokenizerError:
        if not is_at_hand(name):  # a manifest must not cause a download
            raise
        for request in _of_both_types({"tokenizer": name}):
            yield partial(load_tokenizer, **request, eod_token=eod)
        return
    settings = {key: Path(path) for key, path in files.items() if key in SETTINGS}
    main = {key: Path(path) for key, path in files.items() if key not in SETTINGS}
    kind = _TYPES_OF_KINDS.get(str(entry.get("kind")))
    if kind or "vocab_size" in arguments:
        request = {
            "tokenizer": next(iter(main.values())),
            **(arguments or {"tokenizer_type": kind}),
        }
        yield partial(load_tokenizer, **request, eod_token=eod)
        return
    for special in (None, "encode"):  # GPT-2's two files are of types that differ in it
        options = TokenizerOptions(special, eod, arguments.get("pattern"))
        yield partial(from_folder, TokenizerFolder(main, settings), name, options)
    if settings:  # a SentencePiece model with a config that names a class was read once
        yield partial(from_folder, TokenizerFolder(main), name, options)


def _of_both_types(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The request for each of the two types that GPT-2's files can have.

    They differ in how special tokens in texts are treated.
    """
    return [{**request, "tokenizer_type": type_} for type_ in (None, "HFGPT2Tokenizer")]


def tokenizer_of(entry: Mapping[str, Any] | None, **files: Unpack[TokenizerFiles]) -> Tokenizer:
    """The tokenizer that a checkpoint's entry describes, or the one that is given.

    TokenizerError if it is not found, or if it is another one than the entry says.
    """
    chosen = any(files.values())
    if entry is None and not chosen:
        raise TokenizerError(
            f"the checkpoint does not say its tokenizer: add {_TOKENIZER}, or {_TWO_FILES}"
        )
    if entry is None:
        return load_tokenizer(**files)
    why = ""
    try:
        candidates = list(_of_types(entry, files)) if chosen else [load_described(entry)]
        same = [tokenizer for tokenizer in candidates if tokenizer.fingerprint == entry["sha256"]]
        if same:
            return same[0]
        why = f"{candidates[0].name} is another one ({candidates[0].fingerprint})"
    except TokenizerError as error:
        if chosen:
            raise
        why = error.args[0]
    raise TokenizerError(
        f"the tokenizer of the checkpoint, {entry['name']} ({entry['sha256']}), is not found "
        f"({why}): add {_TOKENIZER}, or {_TWO_FILES}"
    )


def _of_types(entry: Mapping[str, Any], files: TokenizerFiles) -> Iterator[Tokenizer]:
    """The tokenizers that a request may mean, by the entry."""
    arguments, kind = arguments_of(entry), files.get("tokenizer_type")
    kind = kind or _TYPES_OF_KINDS.get(str(entry.get("kind")))
    requests = [{**files, "tokenizer_type": kind}] if kind else _of_both_types(files)
    if arguments:
        paths = map(files.get, ("tokenizer", "tokenizer_model", "vocab_file"))
        requests = [{"tokenizer": next(filter(None, paths), None), **arguments}]
    for request in requests:
        yield load_tokenizer(**request, eod_token=entry.get("eod_id"))


def count_ids(path: str) -> int:
    """One more than the largest id of a vocab.json or tokenizer.json; nothing else is checked.

    InputError if it cannot be read, FormatError if it is neither.
    """
    try:
        values = read_json(near(fspath(path)))
        model, added = values.get("model"), []  # GPT-2's vocabulary also has the word "model"
        if isinstance(model, dict):
            added = [token["id"] for token in values.get("added_tokens", [])]
            values = model["vocab"]
        ids = range(len(values)) if isinstance(values, list) else values.values()
        return 1 + int(max([*ids, *added]))
    except FileNotFoundError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FormatError(f"{path}: neither a vocab.json nor a tokenizer.json") from error
