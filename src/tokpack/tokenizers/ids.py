"""How many ids a tokenizer's file has, without the rest of the tokenizer."""

from __future__ import annotations

import json

from tokpack.errors import FormatError, InputError


def count_ids(path: str) -> int:
    """One more than the largest id of a vocab.json or tokenizer.json.

    InputError where it cannot be read, FormatError where it is neither.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        model, added = values.get("model"), []  # "model" is a word of GPT-2's vocabulary too
        if isinstance(model, dict):
            added = [token["id"] for token in values.get("added_tokens", [])]
            values = model["vocab"]
        ids = range(len(values)) if isinstance(values, list) else values.values()
        return 1 + int(max([*ids, *added]))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path}: neither a vocab.json nor a tokenizer.json") from error
