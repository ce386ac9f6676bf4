"""What distinguishes a run from one that was begun or finished before, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokpack.encoding.plan import Plan

# Flags whose names are not those of their options.
_SHOWN = {
    "keys": "--json-keys",
    "num_docs": "--limit",
    "nltk": "the version of nltk",
    "duckdb": "the version of duckdb",
    "columns": "the types of the columns of its first records",
    "template_sha256": "the sha256 of the chat template",
    "struct_nulls": "the nulls in structs of its tables",
    "form": "the form of its conversations",
    "jinja2": "the version of jinja2",
    "tokens": "the special tokens of the chat template",
    "variables": "--template-var",
}
_UNSHOWN = {"template", "tool_use"}  # of which there is a hash
_AROUND = {
    "eod_id": "the EOD (--eod-token)",
    "frame": "the ids around a document (--prepend-bos, --bos-token, --add-special-tokens)",
}


def difference(one: Plan, other: Plan) -> str:
    """What makes ``other`` (the plan of now) another run than ``one``; "" for nothing."""
    if one.version != other.version:
        return f"it was begun by tokpack {one.version}, this is {other.version}"
    if len(one.sources) != len(other.sources):
        inputs = "input" if len(one.sources) == 1 else "inputs"
        return f"it has {len(one.sources)} {inputs}, this run has {len(other.sources)}"
    return _other_input(one, other) or _other_tokenizer(one, other) or _other_option(one, other)


def _other_input(one: Plan, other: Plan) -> str:
    pairs = zip(one.sources, one.fingerprints, other.sources, other.fingerprints, strict=True)
    for old, old_print, new, new_print in pairs:
        if old.format == new.format == "documents":
            if old_print != new_print:  # without a key nothing says that they are the same
                which = ("another" if new_print else "a") if old_print else "no"
                return f"it has {which} resume_key"
        elif (old_print, old.size) != (new_print, new.size):
            if old.name == new.name:
                return f"the input {new.name} has changed since"
            return f"it reads {old.name} where this run reads {new.name}"
        if (old.format, old.compression) != (new.format, new.compression):
            return f"the input {new.name} is now read as another format"
    return ""


def _other_tokenizer(one: Plan, other: Plan) -> str:
    old, new = one.tokenizer, other.tokenizer
    same = old["sha256"] == new["sha256"]
    for key in ("eod_id", "frame"):
        if (same or old["name"] == new["name"]) and old.get(key) != new.get(key):
            return f"it has {_AROUND[key]} {old.get(key)}, this run has {new.get(key)}"
    if same:
        return ""
    if old["name"] == new["name"]:
        return f"the files of the tokenizer {new['name']} have changed"
    return f"it uses the tokenizer {old['name']}, this run uses {new['name']}"


def _other_option(one: Plan, other: Plan) -> str:
    old, new = _flat(one.options), _flat(other.options)
    for key in sorted({*old, *new} - _UNSHOWN):
        before, now = old.get(key, False), new.get(key, False)
        if before != now:
            name = _SHOWN.get(key, "--" + key.replace("_", "-"))
            return f"it has {name} = {before!r}, this run has {now!r}"
    return ""


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with those of conversations beside the others."""
    chat = options.get("chat") or {}
    return {**options, **chat, "chat": bool(chat)}
