"""Find a tokenizer: by name, by path, or by the flags of other preprocessors."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokpack.errors import TokenizerError, UsageError
from tokpack.tokenizers import hub, spec_cache
from tokpack.tokenizers.gpt2_files import (
    parse_json,
    parse_merges,
    parse_vocab,
    read_bytes,
    spec_from_files,
)
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import NativeTokenizer
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from tokpack.tokenizers.spec_json import NotNativeError, spec_from_json
from tokpack.tokenizers.whitespace import WhitespaceTokenizer, check_vocab

if TYPE_CHECKING:
    from tokpack.tokenizers.base import SpecialTokens, Tokenizer
    from tokpack.tokenizers.spec import ByteLevelSpec

AnyPath = str | PathLike[str]

_JSON_FILES = ("tokenizer.json", "20B_tokenizer.json")
_GPT2_FILES = (
    ("vocab.json", "merges.txt"),
    ("gpt2-vocab.json", "gpt2-merges.txt"),
    ("encoder.json", "vocab.bpe"),
)
_MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class Known:
    """A tokenizer with a name of its own; ``digest`` is its definition's, in every copy of it."""

    name: str
    repository: str
    aliases: tuple[str, ...]
    files: tuple[str, ...]
    flags: str
    digest: str


_KNOWN = (
    Known(
        name="gpt2",
        repository="openai-community/gpt2",
        aliases=("gpt-2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
        files=("vocab.json", "merges.txt"),
        flags="--vocab-file and --merge-file",
        digest="0ba1f2a060ea18581f6dfaef20810814d86a5cd717a0b402b38fc8b1c4015325",
    ),
    Known(
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
    "whitespace": "whitespace",
    "whitespacetokenizer": "whitespace",
}


class _Choice(NamedTuple):
    """What a request says beside where the tokenizer is; None: as the tokenizer itself has it."""

    special: SpecialTokens | None
    eod_token: str | int | None


def load_tokenizer(
    name: AnyPath | None = None,
    *,
    vocab_file: AnyPath | None = None,
    merge_file: AnyPath | None = None,
    tokenizer_type: str | None = None,
    tokenizer_model: AnyPath | None = None,
    eod_token: str | int | None = None,
) -> Tokenizer:
    """Load a tokenizer; GPT-2's when nothing is said.

    ``name`` is a name (gpt2, neox, a Hugging Face repository as owner/name) or a path (a
    tokenizer.json, a folder with one or with vocab.json and merges.txt, a SentencePiece model).
    ``vocab_file`` is a tokenizer.json, or goes with a ``merge_file``; ``tokenizer_model`` is as
    ``name``; ``tokenizer_type`` is one of the other preprocessors' names, or ``Whitespace``.
    ``eod_token`` is the end-of-document token, or in digits its id, where it is not one of the
    usual ones.

    Raises UsageError for a request that contradicts itself, TokenizerError for a tokenizer that is
    unknown, incomplete or contradictory.
    """
    kind = _kind(tokenizer_type)
    given = [fspath(s) for s in (name, tokenizer_model, vocab_file) if s is not None]
    if len(given) > 1:
        raise UsageError(
            f"more than one tokenizer is given ({', '.join(given)}): "
            "keep one of --tokenizer, --tokenizer-model and --vocab-file"
        )
    if merge_file is not None and (vocab_file is None or kind in ("whitespace", "sentencepiece")):
        raise UsageError(f"the merges {merge_file} go with a --vocab-file of GPT-2's form only")
    if not given and kind not in (None, "gpt2"):
        flag = "--tokenizer-model" if kind == "sentencepiece" else "--vocab-file"
        raise UsageError(f"tokenizer type {tokenizer_type} needs its file: add {flag}")
    source = given[0] if given else "gpt2"
    if kind == "sentencepiece":
        return SentencePieceTokenizer(source, read_bytes(Path(source)), eod_token=eod_token)
    if kind == "whitespace":
        return _from_words(Path(source), source, eod_token)
    # transformers' GPT-2 encodes special tokens, Megatron's takes them for text.
    by_transformers = (tokenizer_type or "").lower().startswith("hfgpt2")
    choice = _Choice("encode" if by_transformers else None, eod_token)
    if merge_file is not None:
        return _from_gpt2_files(Path(source), Path(merge_file), source, choice)
    if vocab_file is not None:
        return _from_path(Path(source), source, choice)
    return _from_name(source, choice)


def _kind(tokenizer_type: str | None) -> str | None:
    if tokenizer_type is None:
        return None
    kind = _TYPES.get(tokenizer_type.lower())
    if kind is None:
        raise UsageError(
            f"tokenizer type '{tokenizer_type}' is not supported: give the tokenizer as a "
            "tokenizer.json with --tokenizer PATH, or use one of the types GPT2BPETokenizer, "
            "HFTokenizer, HFGPT2Tokenizer, HuggingFaceTokenizer, PretrainedFromHF, "
            "SentencePieceTokenizer, SPMTokenizer, Llama2Tokenizer, Whitespace"
        )
    return kind


def _from_name(name: str, choice: _Choice) -> Tokenizer:
    for known in _KNOWN:
        if name.lower() in (known.name, known.repository.lower(), *known.aliases):
            return _from_known(known, choice)
    path = Path(name)
    if path.exists():
        return _from_path(path, name, choice)
    if not hub.is_repository(name) or path.suffix in (".json", ".model"):
        raise TokenizerError(
            f"tokenizer '{name}' is unknown: no such file or folder, and no name; names are "
            f"{', '.join(k.name for k in _KNOWN)}, and Hugging Face repositories as owner/name"
        )
    cache = hub.cache_folder(name)
    for folder in (cache, *hub.hub_snapshots(name)):
        if _find(folder):
            return _from_path(folder, name, choice)
    choices = [_JSON_FILES[:1], _GPT2_FILES[0], _MODEL_FILES[:1]]
    try:
        hub.download(name, choices, cache, check=lambda folder: None)
    except hub.UnavailableError as error:
        raise TokenizerError(
            f"tokenizer {name} is not on this machine, and cannot be downloaded: {error}. Put its "
            f"tokenizer.json into {cache}, or give a path to it with --tokenizer"
        ) from None
    return _from_path(cache, name, choice)


def _from_known(known: Known, choice: _Choice) -> Tokenizer:
    def load(folder: Path) -> Tokenizer:
        tokenizer = _from_files([folder / file for file in known.files], known.name, choice)
        if tokenizer.definition_digest() != known.digest:
            raise TokenizerError(
                f"{folder}: {' and '.join(known.files)} are not those of the tokenizer {known.name}"
                f" (sha256 of the definition {tokenizer.definition_digest()}, expected "
                f"{known.digest}): replace them, or give their path if you want this one"
            )
        return tokenizer

    def check(folder: Path) -> None:
        load(folder)

    cache = hub.cache_folder(known.name)
    repositories = (known.repository, known.repository.split("/")[1])
    snapshots = [folder for name in repositories for folder in hub.hub_snapshots(name)]
    for folder in (cache, *snapshots):
        if all((folder / file).is_file() for file in known.files):
            return load(folder)
    try:
        hub.download(known.repository, [known.files], cache, check=check)
    except hub.UnavailableError as error:
        raise TokenizerError(
            f"tokenizer {known.name} is not on this machine, and cannot be downloaded: {error}. "
            f"Put {' and '.join(known.files)} of https://huggingface.co/{known.repository} into "
            f"{cache}, or give the path with {known.flags}"
        ) from None
    return load(cache)


def _find(folder: Path) -> list[Path] | None:
    """The files of the tokenizer in a folder: a tokenizer.json, GPT-2's two files, or a model."""
    single = [(file,) for file in (*_JSON_FILES, *_MODEL_FILES)]
    for files in (*single[: len(_JSON_FILES)], *_GPT2_FILES, *single[len(_JSON_FILES) :]):
        paths = [folder / file for file in files]
        if all(path.is_file() for path in paths):
            return paths
    return None


def _from_path(path: Path, name: str, choice: _Choice) -> Tokenizer:
    if not path.is_dir():
        return _from_files([path], name, choice)
    files = _find(path)
    if files is None:
        raise TokenizerError(
            f"{path}: the folder has no tokenizer.json, no vocab.json with merges.txt and no "
            "tokenizer.model"
        )
    return _from_files(files, name, choice)


def _from_files(files: list[Path], name: str, choice: _Choice) -> Tokenizer:
    if len(files) == 2:
        return _from_gpt2_files(files[0], files[1], name, choice)
    if files[0].suffix == ".model":
        return SentencePieceTokenizer(name, read_bytes(files[0]), eod_token=choice.eod_token)
    return _from_json(files[0], name, choice)


def _from_json(path: Path, name: str, choice: _Choice) -> Tokenizer:
    raw = read_bytes(path)

    def read() -> ByteLevelSpec:
        definition = parse_json(raw, path)
        if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
            raise TokenizerError(
                f"{path}: not a tokenizer.json (it has no model); a vocab.json needs its merges: "
                "add --merge-file; a vocabulary of words needs --tokenizer-type Whitespace"
            )
        return spec_from_json(definition)

    try:
        spec = spec_cache.kept(raw, read)
    except NotNativeError as reason:
        return HuggingFaceTokenizer(
            name, raw, why_not_native=str(reason), eod_token=choice.eod_token
        )
    return NativeTokenizer(
        name,
        spec,
        reference=(raw,),
        special_tokens_default=choice.special or "encode",
        eod_token=choice.eod_token,
    )


def _from_gpt2_files(vocab_file: Path, merge_file: Path, name: str, choice: _Choice) -> Tokenizer:
    raw_vocab, raw_merges = read_bytes(vocab_file), read_bytes(merge_file)
    vocab = parse_vocab(raw_vocab, vocab_file)
    pairs = parse_merges(raw_merges, merge_file)
    return NativeTokenizer(
        name,
        spec_from_files(vocab, pairs, vocab_file, merge_file),
        reference=(raw_vocab, raw_merges),
        special_tokens_default=choice.special or "text",
        eod_token=choice.eod_token,
    )


def _from_words(path: Path, name: str, eod_token: str | int | None) -> Tokenizer:
    vocab = parse_vocab(read_bytes(path), path)
    check_vocab(vocab, str(path))
    return WhitespaceTokenizer(name, vocab, eod_token=eod_token)
