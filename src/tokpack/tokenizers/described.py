"""Load the tokenizer that a manifest or a checkpoint describes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, TokpackError
from tokpack.tokenizers import hub
from tokpack.tokenizers.base import TokenizerOptions
from tokpack.tokenizers.copies import find_copies
from tokpack.tokenizers.folder import SETTINGS, TokenizerFolder
from tokpack.tokenizers.from_files import from_folder
from tokpack.tokenizers.load import is_at_hand, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Unpack

    from tokpack.tokenizers.base import Tokenizer
    from tokpack.tokenizers.load import TokenizerFiles

_TYPES = {"whitespace vocabulary": "Whitespace", "SentencePiece": "SentencePieceTokenizer"}
_ARGUMENTS = {"tokenizer_type": str, "pattern": str, "vocab_size": int, "special_tokens_count": int}


def arguments_of(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of load_tokenizer in a description beside the name; unknown ones left out."""
    arguments = (entry or {}).get("arguments")
    values = arguments if isinstance(arguments, dict) else {}
    return {key: values[key] for key, kind in _ARGUMENTS.items() if type(values.get(key)) is kind}


def load_described(entry: Mapping[str, Any], folder: str = "") -> Tokenizer:
    """The tokenizer that a manifest or a checkpoint describes; its files may lie in ``folder``.

    The description may be anybody's: it is by its files' checksums that they are found, on this
    machine, or by a name that tokpack has. TokenizerError where there is no such tokenizer.
    """
    reason = "what is there now is another one (its sha256 differs)"
    eod = entry.get("eod_id")
    for load in _loaders(entry, folder, eod if type(eod) is int else None):
        try:
            tokenizer = load()
        except (TokpackError, OSError) as error:
            reason = str(error)
            continue
        if tokenizer.fingerprint == entry.get("sha256"):
            tokenizer.name = str(entry.get("name", ""))
            return tokenizer
    raise TokenizerError(reason)


def _loaders(
    entry: Mapping[str, Any], folder: str, eod: int | None
) -> Iterator[Callable[[], Tokenizer]]:
    """What may load a described tokenizer again, the likely ways first. TokenizerError."""
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
        if not is_at_hand(name):  # a manifest downloads nothing
            raise
        for request in _of_both_types({"tokenizer": name}):
            yield partial(load_tokenizer, **request, eod_token=eod)
        return
    settings = {key: Path(path) for key, path in files.items() if key in SETTINGS}
    main = {key: Path(path) for key, path in files.items() if key not in SETTINGS}
    kind = _TYPES.get(str(entry.get("kind")))
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


def _of_both_types(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """GPT-2's files are two types, which differ in what special tokens in texts become."""
    return [{**request, "tokenizer_type": type_} for type_ in (None, "HFGPT2Tokenizer")]


def tokenizer_of(entry: Mapping[str, Any] | None, **files: Unpack[TokenizerFiles]) -> Tokenizer:
    """The tokenizer that a checkpoint's entry describes, or the one that is given.

    TokenizerError where it is not found, or is another one than the entry says.
    """
    chosen = any(files.values())
    if entry is None and not chosen:
        raise TokenizerError(
            "the checkpoint does not say its tokenizer: add --tokenizer, or --vocab-file and "
            "--merge-file"
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
        why = str(error)
    raise TokenizerError(
        f"the tokenizer of the checkpoint, {entry['name']} ({entry['sha256']}), is not found "
        f"({why}): add --tokenizer, or --vocab-file and --merge-file"
    )


def _of_types(entry: Mapping[str, Any], files: TokenizerFiles) -> Iterator[Tokenizer]:
    """The tokenizers that a request may mean, as the entry has them."""
    arguments, kind = arguments_of(entry), files.get("tokenizer_type")
    kind = kind or _TYPES.get(str(entry.get("kind")))
    requests = [{**files, "tokenizer_type": kind}] if kind else _of_both_types(files)
    if arguments:
        paths = map(files.get, ("tokenizer", "tokenizer_model", "vocab_file"))
        requests = [{"tokenizer": next(filter(None, paths), None), **arguments}]
    for request in requests:
        yield load_tokenizer(**request, eod_token=entry.get("eod_id"))
