"""The chat template of a tokenizer, from its files or from a request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokpack.display import brief
from tokpack.errors import TokenizerError, UsageError, option
from tokpack.storage import is_url
from tokpack.storage.disk import read_object, read_whole
from tokpack.tokenizers import beside, hub

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokpack.chat.rendered import ChatOptions
    from tokpack.tokenizers import Tokenizer

_SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_MOST_BYTES = 1 << 22  # the largest file with a template


@dataclass(frozen=True)
class ChatTemplate:
    """The text of a template, with the special tokens that it may name.

    ``tool_use`` is the template for conversations with tools, if there is a separate one.
    ``tokens`` are the tokenizer's special tokens, such as ``bos_token``; None if its files do not
    tell them. ``where`` is its place, for messages.
    """

    source: str
    tokens: Mapping[str, str] | None = None
    tool_use: str | None = None
    where: str = "the chat template"
    names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def digest(self) -> str:
        """The sha256 of its text, in hex; of both texts, if there are two."""
        both = self.source if self.tool_use is None else f"{self.source}\0{self.tool_use}"
        return hashlib.sha256(both.encode(errors="surrogatepass")).hexdigest()


def load_template(tokenizer: Tokenizer, options: ChatOptions) -> ChatTemplate:
    """The template for a tokenizer's conversations. UsageError, TokenizerError.

    As in transformers, a chat_template.jinja beside the tokenizer, with additional_chat_templates,
    takes precedence over the ``chat_template`` in its tokenizer_config.json. ``options.template``
    is a file, the name of one of the tokenizer's templates, or a template's text.
    """
    folders = list(_folders(tokenizer))
    named, where = next((one for one in map(_templates, folders) if one[0]), ({}, tokenizer.name))
    if named and (lacking := beside(tokenizer)):
        raise UsageError(
            f"{tokenizer.name} is in a folder whose chat template writes tokens that this file "
            f"lacks, such as {', '.join(lacking[:3])}: name the folder as the tokenizer"
        )
    tokens = next((one for one in map(_tokens, folders) if one is not None), None)
    template = options.template
    if template is not None:
        return _asked(template, named, tokens, where)
    if "default" in named:
        return ChatTemplate(
            named["default"], tokens, named.get("tool_use"), where, tuple(sorted(named))
        )
    if named:
        raise UsageError(
            f"{where}: there are several chat templates and none is the default: say which, "
            f"{option('chat_template', 'NAME')}, of {', '.join(sorted(named))}"
        )
    raise UsageError(
        f"tokenizer {tokenizer.name} has no chat template (no chat_template.jinja, none in a "
        f"tokenizer_config.json): give one, {option('chat_template', 'FILE')}"
    )


def _asked(
    template: str, named: Mapping[str, str], tokens: Mapping[str, str] | None, where: str
) -> ChatTemplate:
    if template in named:
        return ChatTemplate(named[template], tokens, None, f"{where}, {template}")
    if "{%" in template or "{{" in template or "\n" in template:
        return ChatTemplate(template, tokens)
    path = Path(template).expanduser()
    if not path.is_file():
        names = f"; the tokenizer's templates are {', '.join(sorted(named))}" if named else ""
        raise UsageError(
            f"{option('chat_template', template)}: no file or template of this name{names}"
        )
    if path.suffix == ".json":
        text = read_object(path, missing=UsageError, wrong=UsageError).get("chat_template")
        templates = _by_name(text, path)
        if "default" not in templates:
            raise UsageError(f"{path}: has no chat_template, or several without a default")
        return ChatTemplate(templates["default"], tokens, templates.get("tool_use"), str(path))
    return ChatTemplate(_read(path), tokens, None, str(path))


def _folders(tokenizer: Tokenizer) -> Iterator[Path]:
    """The folders that may have a tokenizer's other files."""
    if is_url(tokenizer.name):
        return  # its file lies alone in a cache
    yield from dict.fromkeys(path.parent for path in tokenizer.files.values())
    if hub.is_repository(tokenizer.name):
        yield from hub.hub_snapshots(tokenizer.name)


def _templates(folder: Path) -> tuple[dict[str, str], str]:
    """The templates in a folder by their names, and their place."""
    files = {"default": folder / "chat_template.jinja"}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        files[path.name.removesuffix(".jinja")] = path
    templates = {name: _read(path) for name, path in files.items() if path.is_file()}
    if templates:
        return templates, str(folder)
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = folder / name
        if path.is_file():
            content = read_object(path, missing=TokenizerError, wrong=TokenizerError)
            templates = _by_name(content.get("chat_template"), path)
            if templates:
                return templates, str(path)
    return {}, str(folder)


def _by_name(value: Any, path: Path) -> dict[str, str]:
    """One template as the default, or several of a list by their names."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    try:
        return {str(one["name"]): str(one["template"]) for one in value}
    except (KeyError, TypeError):
        raise TokenizerError(f"{path}: chat_template is not text: {brief(value)}") from None


def _tokens(folder: Path) -> dict[str, str] | None:
    """The special tokens that the files in a folder name; None if there are no such files."""
    tokens: dict[str, str] | None = None
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            content = read_object(path, missing=TokenizerError, wrong=TokenizerError)
            tokens = tokens or {}
            for key in _SPECIAL:
                token = content.get(key)
                text = token.get("content") if isinstance(token, dict) else token
                if isinstance(text, str):
                    tokens[key] = text
    return tokens


def _read(path: Path) -> str:
    raw = read_whole(path, most=_MOST_BYTES, missing=UsageError, wrong=UsageError)
    try:
        # Like a text file: whatever ends the lines, the template sees "\n".
        return raw.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the chat template is not UTF-8") from None
