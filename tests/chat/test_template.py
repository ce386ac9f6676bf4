"""The template of a tokenizer is the one that transformers finds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import transformers
from support.tiny_tokenizers import save, tiny

from tokpack.chat import ChatOptions
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import load_template
from tokpack.errors import UsageError
from tokpack.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from tokpack.chat.template import ChatTemplate

ONE = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
TOOLS = "{% for m in messages %}({{ m.content }}){% endfor %}"
TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]


def folder_of(path: Path, config: dict[str, Any] | None = None, **files: str) -> Path:
    """A tokenizer's folder with a configuration, and with templates."""
    save(path, tiny())
    if config is not None:
        content = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        (path / "tokenizer_config.json").write_text(json.dumps(content))
    for name, text in files.items():
        place = path / ("chat_template.jinja" if name == "default" else "additional_chat_templates")
        if name != "default":
            place.mkdir(exist_ok=True)
            place = place / f"{name}.jinja"
        place.write_text(text)
    return path


def found(path: Path, template: str | None = None) -> ChatTemplate:
    return load_template(load_tokenizer(path), ChatOptions(template=template))


CONFIG = {
    "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False},
    "eos_token": "</s>",
    "pad_token": None,
}


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({**CONFIG, "chat_template": ONE}, {}),
        ({**CONFIG, "chat_template": "wrong"}, {"default": ONE}),
        ({**CONFIG, "chat_template": [{"name": "default", "template": ONE}]}, {}),
        (
            {**CONFIG, "chat_template": [{"name": n, "template": ONE} for n in ("x", "default")]},
            {},
        ),
        (CONFIG, {"default": ONE, "tool_use": TOOLS}),
    ],
)
@pytest.mark.parametrize("tools", [None, [{"name": "f"}]])
def test_the_text_is_that_of_transformers(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str], tools: Any
) -> None:
    path = folder_of(tmp_path, config, **files)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    expected = theirs.apply_chat_template(TALK, tokenize=False, tools=tools)
    record = {"messages": TALK, "tools": tools}
    (ours,) = Renderer(found(path), ChatOptions()).render(record)
    assert ours.text == expected


def test_a_template_is_chosen_by_name_by_file_or_as_text(tmp_path: Path) -> None:
    path = folder_of(tmp_path, CONFIG, default=ONE, short=TOOLS)
    assert found(path, "short").source == TOOLS
    assert found(path, TOOLS).source == TOOLS
    file = tmp_path / "mine.jinja"
    file.write_bytes(b"{# mine #}\r\n" + TOOLS.encode())
    assert found(path, str(file)).source == "{# mine #}\n" + TOOLS
    with pytest.raises(UsageError, match=r"chat_template='long'.*default, short"):
        found(path, "long")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = folder_of(tmp_path)
    with pytest.raises(UsageError, match=r"^tokenizer .*chat_template='FILE'"):
        found(path)
    with pytest.raises(UsageError, match="writes bos_token"):
        Renderer(found(path, ONE), ChatOptions())
    named = ChatOptions(variables={"bos_token": "<s>"})
    (rendered,) = Renderer(found(path, ONE), named).render({"messages": TALK})
    assert rendered.text == "<s>[Hello][Good day]"


def test_several_templates_without_a_default_must_be_chosen(tmp_path: Path) -> None:
    path = folder_of(tmp_path, CONFIG, a=ONE, b=TOOLS)
    with pytest.raises(UsageError, match="a, b"):
        found(path)
    assert found(path, "b").source == TOOLS


def test_a_template_that_asks_for_the_day_must_be_told_it() -> None:
    template = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UsageError, match="date="):
        Renderer(template, ChatOptions())
    with pytest.raises(UsageError, match="2026-11-23"):
        Renderer(template, ChatOptions(variables={"date": "today"}))
    renderer = Renderer(template, ChatOptions(variables={"date": "2026-11-23"}))
    (rendered,) = renderer.render({"messages": TALK})
    assert rendered.text == "23 Nov 2026HelloGood day"
    assert renderer.identity()["variables"] == {"date": "2026-11-23"}


def test_the_identity_is_that_of_what_decides_the_text(tmp_path: Path) -> None:
    source = ONE + "{{ x }}"
    path = folder_of(tmp_path, CONFIG, default=source)
    renderer = Renderer(found(path), ChatOptions(variables={"x": 1}))
    identity = renderer.identity()
    assert identity["variables"] == {"bos_token": "<s>", "eos_token": "</s>", "x": 1}
    (path / "chat_template.jinja").write_text(source + " ")
    other = Renderer(found(path), ChatOptions(variables={"x": 1})).identity()
    assert other["template_sha256"] != identity["template_sha256"]
    assert other["variables"] == identity["variables"]


def test_a_variable_that_no_template_reads_is_refused(tmp_path: Path) -> None:
    template = found(folder_of(tmp_path, CONFIG, default=ONE, tool_use=TOOLS + "{{ thinking }}"))
    Renderer(template, ChatOptions(variables={"thinking": False, "date": "2026-11-23"}))
    with pytest.raises(UsageError, match=r"template_var='thinkin=.*bos_token, thinking"):
        Renderer(template, ChatOptions(variables={"thinkin": False}))
