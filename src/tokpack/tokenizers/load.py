"""Find a tokenizer: by name, by path, or by the flags of other preprocessors."""

from __future__ import annotations

from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tokpack.errors import TokenizerError, UsageError
from tokpack.stores import is_url, near, shown
from tokpack.tokenizers import hub, published, ranks
from tokpack.tokenizers.base import TokenizerOptions
from tokpack.tokenizers.char_level import CharLevelTokenizer
from tokpack.tokenizers.folder import (
    CONFIG,
    GPT2_FILES,
    JSON_FILES,
    MODEL_FILES,
    SETTINGS,
    TokenizerFolder,
    find,
)
from tokpack.tokenizers.from_files import from_folder, from_path
from tokpack.tokenizers.gpt2_files import EOD, parse_json, parse_vocab, read_bytes
from tokpack.tokenizers.objects import path_of
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from tokpack.tokenizers.whitespace import WhitespaceTokenizer, check_vocab

if TYPE_CHECKING:
    from tokpack.stores.storage import PathLike
    from tokpack.tokenizers.base import SpecialMode, Tokenizer
    from tokpack.tokenizers.objects import TokenizerLike

_WITH_MERGES = (None, "gpt2", "huggingface")
_FLAGS = {
    "huggingface": "--vocab-file",
    "sentencepiece": "--tokenizer-model",
    "whitespace": "--vocab-file",
    "ranks in a list": "--tokenizer-model",
    "tiktoken": "--vocab-file with the name of an encoding, such as cl100k_base",
}
_BESIDE = (
    "{}: tokenizer type {} also reads the tokenizer_config.json beside it: copy both to a folder "
    "of a disk"
)
_WHOLE_HUB = (*SETTINGS, "chat_template.jinja")  # files of a repository beside its tokenizer's
_FROM_TRANSFORMERS = ("huggingfacetokenizer", "pretrainedfromhf")


@dataclass(frozen=True)
class NamedTokenizer:
    """A tokenizer with a name of its own; ``digest`` is its definition's, in every copy of it."""

    name: str
    repository: str
    aliases: tuple[str, ...]
    files: tuple[str, ...]
    flags: str
    digest: str


_NAMED = (
    NamedTokenizer(
        name="gpt2",
        repository="openai-community/gpt2",
        aliases=("gpt-2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
        files=("vocab.json", "merges.txt"),
        flags="--vocab-file and --merge-file",
        digest="0ba1f2a060ea18581f6dfaef20810814d86a5cd717a0b402b38fc8b1c4015325",
    ),
    NamedTokenizer(
        name="neox",
        repository="EleutherAI/gpt-neox-20b",
        aliases=("20b", "neox20b", "neox-20b", "gpt-neox", "gpt-neox-20b"),
        files=("tokenizer.json",),
        flags="--vocab-file",
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
    """Which tokenizer, as load_tokenizer takes it: what commands about datasets have flags for."""

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
    """Load a tokenizer; GPT-2's when nothing is said.

    ``tokenizer`` is a name (gpt2, neox, cl100k_base, a Hugging Face repository as owner/name) or a
    path (a tokenizer.json, a .tiktoken file, a tekken.json, a SentencePiece model, a folder with
    one of them or with vocab.json and merges.txt; the URL of such a file), or an object: a fast
    tokenizer of transformers, a ``tokenizers.Tokenizer``. A folder means all that its
    tokenizer_config.json adds, a file that is named that file alone. ``vocab_file`` is a
    tokenizer.json, or goes with a ``merge_file``; ``tokenizer_model`` is as ``tokenizer``;
    ``tokenizer_type`` is one of the other preprocessors' names, or ``Whitespace``. ``eod_token`` is
    the end-of-document token, or in digits its id, where it is not one of the usual ones.
    ``pattern`` says how text is cut into words, by a name or as an expression, for a .tiktoken
    file. ``vocab_size`` (ids) and ``special_tokens_count`` are for the type TikTokenizer. ``name``
    is the former name of ``tokenizer``.

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
            f"the merges {shown(fspath(merge_file))} go with a --vocab-file of GPT-2's form only"
        )
    path, source = _near(source), shown(source) if is_url(source) else source
    type_name = (tokenizer_type or "").lower()
    # transformers' GPT-2 encodes special tokens, Megatron's takes them for text.
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
            raise UsageError(f"{source}: --pattern is for a .tiktoken file")
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
    """The one tokenizer that a request names, GPT-2's where it names none. UsageError."""
    if len(named) > 1:
        raise UsageError(
            f"more than one tokenizer is given ({', '.join(map(shown, named))}): "
            "keep one of --tokenizer, --tokenizer-model and --vocab-file"
        )
    if not named and kind not in (None, "gpt2"):
        raise UsageError(f"tokenizer type {tokenizer_type} needs its file: add {_FLAGS[kind]}")
    return named[0] if named else "gpt2"


def _near(name: str) -> Path:
    """The file of a name that may be one, on this machine."""
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
            "tokenizer.json with --tokenizer PATH, or use one of the types GPT2BPETokenizer, "
            "HFTokenizer, HFGPT2Tokenizer, HuggingFaceTokenizer, PretrainedFromHF, "
            "SentencePieceTokenizer, GPTSentencePieceTokenizer, SPMTokenizer, Llama2Tokenizer, "
            "TikTokenizer, TiktokenTokenizer, CharLevelTokenizer, Whitespace"
        )
    return kind


def is_at_hand(name: str) -> bool:
    """Whether a name means one certain tokenizer, whoever says it, for which nothing is asked."""
    named = _named(name)
    return published.by_name(name) is not None if named is None else _folder(named) is not None


def _named(name: str) -> NamedTokenizer | None:
    names = ((one, (one.name, one.repository.lower(), *one.aliases)) for one in _NAMED)
    return next((one for one, its_names in names if name.lower() in its_names), None)


def _from_name(name: str, choice: TokenizerOptions) -> Tokenizer:
    named = _named(name)
    if named is not None:
        return _from_named(named, choice)
    encoding = published.by_name(name)
    if encoding is not None:
        return ranks.from_name(encoding, choice)
    path = Path(name)
    if path.exists():
        return from_path(path, name, choice)
    if not hub.is_repository(name) or path.suffix in (".json", ".model"):
        raise TokenizerError(
            f"tokenizer '{name}' is unknown: no such file or folder, and no name; names are "
            f"{', '.join([*(k.name for k in _NAMED), *published.names()])}, and Hugging Face "
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
            f"tokenizer.json into {cache}, or give a path to it with --tokenizer"
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
            f"{cache}, or give the path with {named.flags}"
        ) from None
    return load(cache)


def named_tokenizers() -> dict[str, tuple[Path | None, str]]:
    """The tokenizers that a first use downloads: the folder here that has them, and what is needed.

    The folder is None where they are not on this machine.
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
    """The folder on this machine that has a tokenizer's files."""
    repositories = (named.repository, named.repository.split("/")[1])
    snapshots = [folder for name in repositories for folder in hub.hub_snapshots(name)]
    folders = (hub.cache_folder(named.name), *snapshots)
    whole = (one for one in folders if all((one / file).is_file() for file in named.files))
    return next(whole, None)


def _from_typed_file(
    path: Path, name: str, type_name: str, eod_token: str | int | None
) -> Tokenizer:
    """A vocabulary of words or a SentencePiece model, as the type says."""
    raw = read_bytes(path)
    if _TYPES[type_name] == "whitespace":
        vocab = parse_vocab(raw, path)
        check_vocab(vocab, str(path))
        return WhitespaceTokenizer(name, vocab, eod_token=eod_token)
    tokenizer = SentencePieceTokenizer(name, raw, eod_token=eod_token)
    if type_name == "spmtokenizer" and eod_token is None:
        # GPT-NeoX's: it ends documents with this piece, if there is one, whatever the model says.
        tokenizer.eod_id = tokenizer.token_to_id(EOD)
        tokenizer.arguments = {"tokenizer_type": "SPMTokenizer"}
    return tokenizer


def _read_list(path: Path) -> list[Any]:
    definition = parse_json(read_bytes(path), path)
    if not isinstance(definition, list):
        raise TokenizerError(
            f"{path}: not a vocabulary of Megatron-LM's TikTokenizer, which is a JSON list; "
            "give other files with --tokenizer alone"
        )
    return definition
