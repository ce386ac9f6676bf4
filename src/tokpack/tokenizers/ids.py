"""How many ids a tokenizer's file has; nothing else of the file is read or checked."""

from __future__ import annotations

from os import fspath

from tokpack.errors import FormatError, InputError
from tokpack.files.foreign import read_json
from tokpack.stores import near


def count_ids(path: str) -> int:
    """One more than the largest id of a vocab.json or tokenizer.json.

    InputError where it cannot be read, FormatError where it is neither.
    """
    try:
        values = read_json(near(fspath(path)))
        model, added = values.get("model"), []  # "model" is a word of GPT-2's vocabulary too
        if isinstance(model, dict):
            added = [token["id"] for token in values.get("added_tokens", [])]
            values = model["vocab"]
        ids = range(len(values)) if isinstance(values, list) else values.values()
        return 1 + int(max([*ids, *added]))
    except FileNotFoundError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise FormatError(f"{path}: neither a vocab.json nor a tokenizer.json") from error
