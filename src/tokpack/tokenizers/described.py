"""Load the tokenizer that a manifest or a checkpoint describes; write it for ``transformers``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, TokpackError
from tokpack.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Unpack

    from tokpack.tokenizers.base import Tokenizer
    from tokpack.tokenizers.load import TokenizerFiles

_TYPES = {"whitespace vocabulary": "Whitespace", "SentencePiece": "SentencePieceTokenizer"}
_ARGUMENTS = {"tokenizer_type": str, "pattern": str, "vocab_size": int, "special_tokens_count": int}


def arguments_of(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of load_tokenizer in a description beside the name; unknown ones left out."""
    known = (entry or {}).get("arguments")
    known = known if isinstance(known, dict) else {}
    return {key: known[key] for key, kind in _ARGUMENTS.items() if type(known.get(key)) is kind}


def tokenizer_of(entry: Mapping[str, Any] | None, **given: Unpack[TokenizerFiles]) -> Tokenizer:
    """The tokenizer that a checkpoint's entry describes, or the one that is given.

    TokenizerError where it is not found, or is another one than the entry says.
    """
    if entry is None and not any(given.values()):
        raise TokenizerError(
            "the checkpoint does not say its tokenizer: add --tokenizer, or --vocab-file and "
            "--merge-file"
        )
    found = list(_candidates(entry, given))
    same = [t for t in found if entry is None or t.fingerprint == entry["sha256"]]
    if same:
        return same[0]
    assert entry is not None
    other = f"; {found[0].name} is another one ({found[0].fingerprint})" if found else ""
    raise TokenizerError(
        f"the tokenizer of the checkpoint, {entry['name']} ({entry['sha256']}), is not found"
        f"{other}: add --tokenizer, or --vocab-file and --merge-file"
    )


def _candidates(entry: Mapping[str, Any] | None, given: TokenizerFiles) -> Iterator[Tokenizer]:
    """The tokenizers that may be meant.

    GPT-2's files are loaded as two types, which differ in what special tokens in texts become.
    """
    asked = any(given.values())
    sources: list[dict[str, Any]] = [{**given}]
    if not asked and entry is not None:
        own = entry["name"]  # of two files the vocabulary alone
        other = own.replace("vocab.json", "merges.txt").replace("encoder.json", "vocab.bpe")
        sources = [{"tokenizer": own}, {"vocab_file": own, "merge_file": other}]
    kind = given.get("tokenizer_type") or (None if entry is None else _TYPES.get(entry["kind"]))
    types = (kind,) if kind else (None, "HFGPT2Tokenizer")
    requests: list[dict[str, Any]]
    requests = [{**source, "tokenizer_type": type_} for source in sources for type_ in types]
    arguments = arguments_of(entry)
    if entry is not None and arguments:
        files = map(given.get, ("tokenizer", "tokenizer_model", "vocab_file"))
        requests = [{"tokenizer": next(filter(None, files), entry["name"]), **arguments}]
    eod = None if entry is None else entry.get("eod_id")
    for request in requests:
        try:
            yield load_tokenizer(**request, eod_token=eod)
        except TokpackError:
            if asked:
                raise


def files_of(tokenizer: Tokenizer, max_length: int, bos: int | None) -> dict[str, bytes]:
    """The files by which ``transformers`` loads a tokenizer; none for a vocabulary of words.

    ``bos`` is the id that begins a text.
    """
    raw: bytes | None = getattr(tokenizer, "raw", None)
    reference: tuple[bytes, ...] = getattr(tokenizer, "reference", (raw,) if raw else ())
    kind = "PreTrainedTokenizerFast"
    if len(reference) == 2:
        files = {"vocab.json": reference[0], "merges.txt": reference[1]}
        kind = "GPT2Tokenizer"
    elif reference and tokenizer.kind == "SentencePiece":
        files, kind = {"tokenizer.model": reference[0]}, "LlamaTokenizer"
    elif reference:
        files = {"tokenizer.json": reference[0]}
    else:
        return {}
    ids = (bos, tokenizer.eod_id)
    begin, eod = (None if i is None else tokenizer.decode([i]) for i in ids)
    settings = {
        "tokenizer_class": kind,
        "model_max_length": max_length,
        "bos_token": begin,
        "eos_token": eod,
        "unk_token": eod,
        "add_bos_token": False,
        "add_prefix_space": False,
    }
    known = {key: value for key, value in settings.items() if value is not None}
    return {**files, "tokenizer_config.json": (json.dumps(known, indent=2) + "\n").encode()}
