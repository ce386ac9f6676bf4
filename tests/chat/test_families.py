"""Published templates: text and spans are those of transformers, one prefix at a time."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_twin import (
    DATE,
    FAMILIES,
    Family,
    RewrittenError,
    UnpromptedError,
    spans_of,
    text_of,
)

from tokpack.chat import ChatOptions, ConversationError, Rendered
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate

USER = {"role": "user", "content": "Which day is it?"}
ANSWER = {"role": "assistant", "content": "It is Monday."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "day_of",
            "description": "The day in a place",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]
CALL = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "day_of", "arguments": {"place": "Zürich"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "Monday", "tool_call_id": "call00001", "name": "day_of"}

TALKS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER, ANSWER],
    "three turns": [USER, ANSWER, {**USER, "content": "And now?"}, ANSWER, USER, ANSWER],
    "a question at the end": [USER, ANSWER, USER],
    "a system message": [SYSTEM, USER, ANSWER, USER, ANSWER],
    "spaces around": [{**USER, "content": " Hm? \n"}, {**ANSWER, "content": "\n Ja. \n "}],
    "an end in the text": [USER, {**ANSWER, "content": "</s><|im_end|><|eot_id|>"}, USER, ANSWER],
}
WITH_TOOLS = {
    "a call": [USER, CALL],
    "a call and its result": [USER, CALL, RESULT, ANSWER],
    "calls in turns": [USER, CALL, RESULT, ANSWER, USER, CALL, RESULT, ANSWER],
}
WITH_THINKING = {
    "thinking": [USER, {**ANSWER, "content": "<think>\nHm.\n</think>\n\nMonday."}],
    "thinking twice": [USER, {**ANSWER, "content": "<think>\nHm.\n</think>\n\nMonday."}] * 2,
    "reasoning": [USER, {**ANSWER, "reasoning_content": "Hm."}],
    "reasoning twice": [USER, {**ANSWER, "reasoning_content": "Hm."}] * 2,
    "reasoning before a call": [USER, {**CALL, "reasoning_content": "Hm."}, RESULT, ANSWER],
}


@functools.cache
def renderer_of(family: Family, **options: str) -> Renderer:
    """tokpack's renderer with a family's template; it takes long to compile one."""
    chosen = ChatOptions(variables={"date": DATE}, **options)
    return Renderer(ChatTemplate(family.source, family.tokens), chosen)


def cases() -> list[Any]:
    """Every conversation with every family that can have it."""
    found = []
    for family in FAMILIES:
        talks = {**TALKS, **(WITH_THINKING if family.thinking else {})}
        for name, talk in talks.items():
            if (family.system or "system" not in name) and (family.tools or CALL not in talk):
                talk = _in_their_words(family, talk)  # noqa: PLW2901
                found.append(pytest.param(family, talk, None, id=f"{family.name}-{name}"))
        for name, talk in WITH_TOOLS.items() if family.tools else ():
            talk = _in_their_words(family, talk)  # noqa: PLW2901
            found.append(pytest.param(family, talk, TOOLS, id=f"{family.name}-{name}"))
    return [case for case in found if not _impossible(*case.values)]


def _in_their_words(family: Family, talk: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation with the arguments of its calls as the template takes them."""
    if not family.text_arguments:
        return talk
    (call,) = CALL["tool_calls"]
    function = {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
    text = {"content": "", "tool_calls": [{**call, "function": function}]}
    return [{**one, **text} if "tool_calls" in one else one for one in talk]


def _impossible(family: Family, talk: list[dict[str, Any]], tools: Any) -> bool:
    """What the published template itself does not do: two calls and no content, and the like."""
    no_content = any("content" not in one for one in talk)
    return no_content and family.name == "deepseek_r1"


@pytest.mark.parametrize(("family", "talk", "tools"), cases())
def test_text_and_spans_are_those_of_transformers(
    family: Family, talk: list[dict[str, Any]], tools: Any
) -> None:
    record = {"messages": talk, **({"tools": tools} if tools else {})}
    try:
        expected = spans_of(family, talk, **({"tools": tools} if tools else {}))
    except RewrittenError:
        check_rewritten(family, record)
        return
    except UnpromptedError:  # DeepSeek's second round of calls: a fault of its template
        assert (family.name, talk) == (
            "deepseek_v3",
            _in_their_words(family, WITH_TOOLS["calls in turns"]),
        )
        with pytest.raises(ConversationError) as caught:
            renderer_of(family).render(record)
        assert caught.value.reason == "the generation prompt does not fit"
        return
    (rendered,) = renderer_of(family).render(record)
    assert rendered.text == expected[0]
    assert _texts(rendered) == [expected[0][begin:end] for begin, end in expected[1]]
    assert list(rendered.trained) == expected[1]


@pytest.mark.parametrize("options", [{}, {"rewriting": "split"}, {"loss": "user,assistant"}])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_records_together_are_as_each_alone(family: Family, options: dict[str, Any]) -> None:
    talks = [*TALKS.values(), *WITH_TOOLS.values(), *WITH_THINKING.values()]
    records: list[dict[str, Any]] = [{"messages": talk} for talk in talks] + [{"text": "none"}]
    records += [{**one, "tools": TOOLS} for one in records]
    records += [{"prompt": "Hm?", "chosen": "a", "rejected": "b"}]

    single = renderer_of(family, **options)

    def alone(record: dict[str, Any]) -> Any:
        try:
            return single.render(record)
        except ConversationError as error:
            return error

    together = renderer_of(family, **options).render_all(records)
    assert list(map(repr, together)) == [repr(alone(one)) for one in records]


def _texts(rendered: Rendered) -> list[str]:
    return [rendered.text[begin:end] for begin, end in rendered.trained]


def check_rewritten(family: Family, record: dict[str, Any]) -> None:
    """A conversation whose turns are rewritten is refused, or split, or taken as it is."""
    talk, tools = record["messages"], {k: v for k, v in record.items() if k == "tools"}
    with pytest.raises(ConversationError) as caught:
        renderer_of(family).render(record)
    assert caught.value.reason == "a turn is rewritten"
    parts = renderer_of(family, rewriting="split").render(record)
    answers = [i for i, one in enumerate(talk) if one["role"] == "assistant"]
    assert len(parts) == len(answers)
    for part, i in zip(parts, answers, strict=True):
        asked = text_of(family, talk[:i], add_generation_prompt=True, **tools)
        said = text_of(family, talk[: i + 1], **tools)
        ((begin, end),) = part.trained
        assert part.text.startswith(asked)
        assert begin >= len(asked)
        assert said.rstrip().endswith(part.text[begin:end])
        assert part.text == said or not said.startswith(asked)
    (whole,) = renderer_of(family, rewriting="as-is").render(record)
    assert whole.text == text_of(family, talk, **tools)
    assert len(whole.trained) == len(answers)


def test_families_rewrite_what_they_are_known_to_rewrite() -> None:
    thinking = WITH_THINKING["reasoning twice"]
    rewriting = set()
    for family in FAMILIES:
        try:
            spans_of(family, thinking)
        except RewrittenError:
            rewriting.add(family.name)
    assert rewriting == {"qwen3", "harmony", "glm4_5", "nemotron3", "qwen3_5"}


CONTENT = st.text(alphabet="ab \n<>", max_size=8) | st.sampled_from(
    ["<think>\n", "</think>", "<|im_end|>", "</s>", "<end_of_turn>\n", "{{ 7 * 7 }}", "é漢🙂"]
)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    contents=st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3),
)
def test_any_contents(family: Family, contents: list[tuple[str, str]]) -> None:
    talk = []
    for asked, said in contents:
        talk += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    try:
        text, spans = spans_of(family, talk)
    except RewrittenError:
        with pytest.raises(ConversationError):
            renderer_of(family).render({"messages": talk})
        return
    (rendered,) = renderer_of(family).render({"messages": talk})
    assert (rendered.text, list(rendered.trained)) == (text, spans)
