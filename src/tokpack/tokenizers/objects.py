"""Tokenizer objects of other libraries, written to the folder that they are then read from.

So workers, manifests and a run that goes on know such a tokenizer as they know every other one: by
files. The folder lies in the cache, and its name is the checksum of what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from tokpack.errors import TokenizerError, UsageError, option
from tokpack.files.cache_root import cache_root
from tokpack.files.durable import replace_file
from tokpack.tokenizers.folder import CONFIG, JSON_FILES, NAMED

if TYPE_CHECKING:
    import tokenizers
    import transformers

    from tokpack.stores.storage import PathLike

    TokenizerLike = PathLike | tokenizers.Tokenizer | transformers.PreTrainedTokenizerBase


def path_of(name: str, value: TokenizerLike) -> str:
    """A tokenizer by its name or path, as a string; an object by the folder that it is written to.

    ``name`` is the option's. UsageError for what is no tokenizer, or has no tokenizer.json.
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
    """What a tokenizer of transformers has beside its definition."""
    config: dict[str, Any] = {key: getattr(value, key, None) for key in NAMED}
    config = {key: str(token) for key, token in config.items() if token is not None}
    if backend.encode_special_tokens:
        config["split_special_tokens"] = True
    if template := getattr(value, "chat_template", None):
        config["chat_template"] = template
    return config
