"""A tokenizer from files or a folder; their content says what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, UsageError
from tokpack.files.foreign import read_object
from tokpack.tokenizers import patterns, ranks, spec_cache
from tokpack.tokenizers.folder import (
    Definition,
    FolderReader,
    Settings,
    TokenizerFolder,
    beside,
    find,
    settings_in,
)
from tokpack.tokenizers.gpt2_files import (
    parse_merges,
    parse_vocab,
    read_bytes,
    spec_from_files,
    warn_of_unreachable,
)
from tokpack.tokenizers.huggingface import HuggingFaceTokenizer
from tokpack.tokenizers.native import JsonTokenizer, NativeTokenizer
from tokpack.tokenizers.sentencepiece import SentencePieceTokenizer
from tokpack.tokenizers.spec import (
    ByteLevelSpec,
    MetaspaceSpec,
    NotNativeError,
    UnigramSpec,
    WordPieceSpec,
    to_json,
)
from tokpack.tokenizers.spec_json import spec_from_json
from tokpack.tokenizers.spec_metaspace import metaspace_spec, writes_spaces
from tokpack.tokenizers.spec_unigram import is_unigram, unigram_spec
from tokpack.tokenizers.spec_wordpiece import is_wordpiece, wordpiece_spec

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.tokenizers.base import Tokenizer, TokenizerOptions
    from tokpack.tokenizers.spec import BpeSpec, NormalForm

_SHOWN = 4  # tokens in a message


def from_path(path: Path, name: str, choice: TokenizerOptions) -> Tokenizer:
    """A tokenizer's file alone, or the folder that it is in with all that this says."""
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
    """The tokenizer of files that are known. TokenizerError."""
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
        _refuse_more_tokens(tokenizer, path, settings)
        return tokenizer
    if not settings.files:
        return from_json(Definition(raw, path), path, name, choice)
    return _from_json_folder(FolderReader(raw, path, settings), path, settings, name, choice)


def _from_json_folder(
    reader: FolderReader, path: Path, settings: Settings, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """A tokenizer.json with what is beside it."""
    if settings.config.get("split_special_tokens") and choice.special is None:
        choice = choice._replace(special="text")
    tokenizer = from_json(reader.definition, path, name, choice)
    tokenizer.notes = tuple(reader.notes(tokenizer))
    return tokenizer


def _refuse_more_tokens(tokenizer: SentencePieceTokenizer, path: Path, settings: Settings) -> None:
    """Raise TokenizerError for tokens that a SentencePiece model lacks, and never could encode."""
    more = [text for text in settings.texts() if tokenizer.token_to_id(text) is None]
    padding = settings.named.get("pad_token", {}).get("content")
    if more and more != [padding]:  # no text has that one
        raise TokenizerError(
            f"{settings.where} adds tokens to the SentencePiece model {path.name}, which its "
            f"library cannot find in a text ({', '.join(more[:_SHOWN])}): give a folder with the "
            "tokenizer.json that AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) of "
            f"transformers writes, or {path} for the model alone"
        )


def _refuse_pattern(path: Path, choice: TokenizerOptions) -> None:
    if choice.pattern is not None:
        raise UsageError(
            f"{path}: its pattern cannot be chosen: --pattern is for a .tiktoken file, which does "
            "not say it"
        )


def _is_sentencepiece(raw: bytes) -> bool:
    """Whether a file begins as a SentencePiece model does: with a piece, its text and its score."""
    if raw[:1] != b"\n":  # field 1, of a length
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
        if is_unigram(value):
            return unigram_spec(value)
        if is_wordpiece(value):
            return wordpiece_spec(value)
        build = metaspace_spec if writes_spaces(value) else spec_from_json
        return build(value)

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
    if isinstance(spec, ByteLevelSpec):
        return NativeTokenizer(
            name,
            spec,
            reference=definition,
            special_tokens_default=choice.special or "encode",
            eod_token=choice.eod_token,
        )
    assert isinstance(spec, MetaspaceSpec | UnigramSpec | WordPieceSpec)
    tokenizer = JsonTokenizer(name, definition, spec, eod_token=choice.eod_token)
    tokenizer.special_tokens_default = choice.special or "encode"
    return tokenizer


class _TekkenFound(Exception):  # noqa: N818 - not an error
    """The file is a tekken.json: it is not to be read, and kept in the cache, as another one."""

    def __init__(self, definition: dict[str, Any]) -> None:
        super().__init__()
        self.definition = definition


def _tokenizer_json(definition: Any, path: Path) -> dict[str, Any]:
    """The object of a tokenizer.json; TokenizerError for another file's, _TekkenFound for one."""
    if ranks.is_tekken(definition):
        raise _TekkenFound(definition)
    if isinstance(definition, list):
        raise TokenizerError(
            f"{path}: a JSON list: if it is the vocabulary of a TikTokenizer, add "
            "--tokenizer-type TikTokenizer"
        )
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        raise TokenizerError(
            f"{path}: not a tokenizer.json (it has no model); a vocab.json needs its merges: add "
            "--merge-file; a vocabulary of words needs --tokenizer-type Whitespace"
        )
    return definition


def _from_gpt2_folder(
    vocab_file: Path, merge_file: Path, settings: Settings, name: str, choice: TokenizerOptions
) -> Tokenizer:
    """A folder with GPT-2's pair of files: the tokenizer.json of what its class makes of them."""
    _refuse_pattern(vocab_file, choice)
    pattern, form = _of_class(settings, vocab_file.parent)
    vocab = parse_vocab(read_bytes(vocab_file), vocab_file)
    merges = parse_merges(read_bytes(merge_file), merge_file)
    spec = spec_from_files(vocab, merges, vocab_file, merge_file)
    warn_of_unreachable(spec, vocab_file, merge_file)
    cutter = patterns.pre_tokenizer_of(pattern)
    raw = to_json(replace(spec, added=(), form=form), cutter)
    reader = FolderReader(raw, vocab_file, settings, is_made=True)
    return _from_json_folder(reader, vocab_file, settings, name, choice)


# What classes of transformers cut by that read GPT-2's two files, and their normal forms.
_CUT_BY: dict[str, tuple[str, NormalForm]] = {
    "": ("gpt2", ""),
    "GPT2Tokenizer": ("gpt2", ""),
    "CodeGenTokenizer": ("gpt2", ""),
    "PreTrainedTokenizer": ("gpt2", ""),
    "Qwen2Tokenizer": ("qwen2", "NFC"),
    "Qwen3_5Tokenizer": ("qwen35", "NFC"),
}


def _of_class(settings: Settings, folder: Path) -> tuple[str, NormalForm]:
    """The pattern and the normal form of the class that a folder names. TokenizerError."""
    name = settings.class_name
    config = folder / "config.json"
    if not name and config.is_file():
        model = read_object(config, missing=TokenizerError, wrong=TokenizerError).get("model_type")
        if str(model).startswith("qwen"):
            name = "Qwen3_5Tokenizer" if str(model).startswith("qwen3_5") else "Qwen2Tokenizer"
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
    """GPT-2's pair of files, or TokenizerError where they are of two tokenizers."""
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
