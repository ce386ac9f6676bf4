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
        added = [token["id"] for token in values.get("added_tokens", [])]
        ids = values["model"]["vocab"] if "model" in values else values
        return 1 + int(max([*(range(len(ids)) if isinstance(ids, list) else ids.values()), *added]))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path}: not a vocabulary of ids by token: {error!r}") from error
