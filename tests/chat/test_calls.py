"""Calls of tools: as a template takes them, none of them lost, trained or not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.chat_twin import DATE, FAMILIES, Family, text_of

from tokpack.chat import ChatOptions, ConversationError, Rendered
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate

USER = {"role": "user", "content": "Which day?"}
ANSWER = {"role": "assistant", "content": "Monday."}
RESULT = {"role": "tool", "content": "Mo", "tool_call_id": "call00001", "name": "day_of"}
TOOL = {
    "type": "function",
    "function": {
        "name": "day_of",
        "description": "The day",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


def call_of(arguments: Any, name: str = "day_of", number: int = 1) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def renderer_of(family: Family, **options: Any) -> Renderer:
    chosen = ChatOptions(variables={"date": DATE}, **options)
    return Renderer(ChatTemplate(family.source, family.tokens), chosen)


def rendered(template: str, *talk: dict[str, Any], **options: Any) -> Rendered:
    """The one text of a conversation."""
    (one,) = Renderer(template, ChatOptions(**options)).render({"messages": list(talk)})
    return one


def trained(one: Rendered) -> list[str]:
    return [one.text[begin:end] for begin, end in one.trained]


# Arguments.

CALLERS = [family for family in FAMILIES if family.tools]
PLACE = {"place": "Z\u00fcrich", "more": ["a", 1.5, None, {"b": True}]}


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_arguments_are_given_as_a_template_takes_them(family: Family) -> None:
    """A template that takes both ways is given what the record has."""
    renderer = renderer_of(family, rewriting="as-is")
    texts = []
    for given in (PLACE, json.dumps(PLACE, ensure_ascii=False)):
        talk = [USER, calling(call_of(given)), RESULT, ANSWER]
        (one,) = renderer.render({"messages": talk, "tools": [TOOL]})
        texts.append(one.text)
        assert '\\"' not in one.text
    taken = json.dumps(PLACE, ensure_ascii=False) if family.text_arguments else PLACE
    expected = text_of(family, [USER, calling(call_of(taken)), RESULT, ANSWER], tools=[TOOL])
    assert texts == [expected, expected]


def test_arguments_are_given_as_is_asked_for() -> None:
    (family,) = [one for one in FAMILIES if one.name == "qwen2_5"]
    talk = [USER, calling(call_of('{"place": "Bern"}'))]
    for kind, expected in (
        ("as-is", '"{\\"place\\": \\"Bern\\"}"'),
        ("text", '"{\\"place\\": \\"Bern\\"}"'),
        ("mapping", '{"place": "Bern"}'),
    ):
        (one,) = renderer_of(family, tool_arguments=kind).render({"messages": talk})
        assert f'"arguments": {expected}' in one.text
    (one,) = renderer_of(family, tool_arguments="as-is").render({"messages": talk})
    assert one.text == text_of(family, talk)


@pytest.mark.parametrize(("given", "expected"), [("", "{}"), ("{}", "{}"), (" ", "{}")])
def test_no_arguments_are_an_empty_mapping(given: str, expected: str) -> None:
    (family,) = [one for one in FAMILIES if one.name == "qwen2_5"]
    (one,) = renderer_of(family).render({"messages": [USER, calling(call_of(given))]})
    assert f'"arguments": {expected}}}' in one.text


@pytest.mark.parametrize("wrong", ["place=Bern", "[1]", "7", "{"])
def test_arguments_that_are_no_mapping_are_refused_by_name(wrong: str) -> None:
    (family,) = [one for one in FAMILIES if one.name == "qwen3_5"]
    with pytest.raises(ConversationError, match=r"'day_of' in message 1\b.*tool_arguments='as-is'"):
        renderer_of(family).render({"messages": [USER, calling(call_of(wrong))]})


# What a template leaves out.

TURN = "{% for m in messages %}[{{ m.role }}]"
END = "<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
CALL = "<call>{{ c.function.name }}({{ c.function.arguments | tojson }})</call>"
EVERY = TURN + "{{ m.content }}{% for c in m.tool_calls or [] %}" + CALL + "{% endfor %}" + END
FIRST = (
    TURN + "{{ m.content }}{% for c in (m.tool_calls or [])[:1] %}" + CALL + "{% endfor %}" + END
)
EITHER = (
    TURN + "{% if m.tool_calls %}{% for c in m.tool_calls %}" + CALL + "{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}" + END
)
BY_ID = (
    TURN + "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.id }} "
    "{{ c.function.arguments | tojson }}</call>{% endfor %}" + END
)
NAMED_TWICE = FIRST.replace("{{ c.function.name }}", "{{ c.function.name }}:{{ c.function.name }}")


@pytest.mark.parametrize(
    "calls",
    [
        [call_of({"place": "Bern"}), call_of({"place": "Rom"}, number=2)],
        [call_of({"place": "Bern"}), call_of({"place": "Bern"}, number=2)],
        [call_of({"place": "Bern"}), call_of({"place": "Rom"}, "day", 2)],
        [call_of({"x": 1}), call_of({"x": 2}, number=2)],
        [call_of({}), call_of({}, number=2)],
    ],
)
@pytest.mark.parametrize("template", [FIRST, NAMED_TWICE])
def test_a_call_that_is_left_out_is_missed_whatever_its_name(
    template: str, calls: list[Any]
) -> None:
    for text in ("", "I ask for day_of and day."):
        said = calling(*calls, content=text)
        with pytest.raises(ConversationError) as caught:
            rendered(template, USER, said)
        assert caught.value.reason == "tool calls are not written"
        one = rendered(EVERY, USER, said)
        assert one.text.count("<call>") == 2
        rendered(template, USER, calling(calls[0], content=text))


def test_a_call_is_written_where_its_id_stands_for_its_name() -> None:
    calls = [call_of({}), call_of({}, number=2)]
    assert rendered(BY_ID, USER, calling(*calls)).text.count("<call>") == 2
    same = [call_of({"x": 1}), call_of({"x": 1})]
    assert rendered(BY_ID, USER, calling(*same)).text.count("<call>") == 2


@pytest.mark.parametrize(
    ("template", "content", "lost"),
    [
        (EITHER, "Let me look.", 1),
        (EITHER, "Bern", 1),  # which is in the arguments
        (EITHER, "day_of", 1),
        (EITHER, "", 0),
        (EITHER, " \n", 0),
        (EVERY, "Let me look.", 0),
        (EVERY, "Bern", 0),
        (EVERY, "day_of", 0),
    ],
)
def test_a_text_beside_a_call_that_is_left_out_is_counted(
    template: str, content: str, lost: int
) -> None:
    said = calling(call_of({"place": "Bern"}), content=content)
    one = rendered(template, USER, said, RESULT, ANSWER)
    assert one.contents_unwritten == lost
    (llama,) = [family for family in FAMILIES if family.name == "llama3"]
    (one,) = renderer_of(llama).render({"messages": [USER, said]})
    assert one.contents_unwritten == bool(content.strip())


def test_of_split_answers_each_lost_text_is_counted_once() -> None:
    said = calling(call_of({"place": "Bern"}), content="Let me look.")
    rewrites = EITHER.replace(
        "<end>", "{{ '' if loop.last or m.role != 'assistant' else '.' }}<end>"
    )
    record = {"messages": [USER, said, RESULT, ANSWER, USER, ANSWER]}
    parts = Renderer(rewrites, ChatOptions(rewriting="split")).render(record)
    assert [one.contents_unwritten for one in parts] == [1, 0, 0]


# Calls that are not to be trained.

TAGGED = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}" + CALL + "{% endfor %}<end>"
    "{% endgeneration %}{% else %}{{ m.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WITH_HEADER = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}[assistant]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}" + CALL + "{% endfor %}<end>"
    "{% endgeneration %}{% else %}[{{ m.role }}]{{ m.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BEHIND = (
    TURN + "{% for c in m.tool_calls or [] %}" + CALL + "{% endfor %}{{ m.content }}" + END
)  # the text is behind the calls
OTHERWISE = EVERY.replace(
    "{{ m.content }}",
    "{{ '<text>' + m.content + '</text>' if m.tool_calls else m.content }}",
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (EVERY, ["Well", "<end>"]),
        (TAGGED, ["Well", "<end>"]),
        (WITH_HEADER, ["[assistant]Well", "<end>"]),
        (BEHIND, ["Well<end>"]),
        (OTHERWISE, ["<text>Well", "<end>"]),
    ],
)
def test_calls_are_not_trained_where_they_are_not_to_be(template: str, expected: list[str]) -> None:
    calls = [call_of({"place": "Bern"}), call_of({"x": 1}, "Well", 2)]
    one = rendered(template, USER, calling(*calls, content="Well"), loss_on_tool_calls=False)
    assert trained(one) == expected
    alone = rendered(template, USER, calling(*calls), loss_on_tool_calls=False)
    assert "<call>" not in "".join(trained(alone))
    assert trained(alone)[-1].endswith("<end>")


def test_without_turns_it_is_known_whose_calls_are_in_a_block() -> None:
    tagged = TAGGED.replace("in messages", "in messages | list")
    said = calling(call_of({"place": "Bern"}), content="Well")
    talk = [USER, said, {**USER, "content": "Hm?"}, ANSWER]
    one = rendered(tagged, *talk, loss_on_tool_calls=False)
    assert "day_of" not in "".join(trained(one))
    assert "Monday." in "".join(trained(one))


@pytest.mark.parametrize("template", [WITH_HEADER, WITH_HEADER.replace("[assistant]", "<me>\n")])
def test_thinking_is_not_trained_behind_the_header_of_a_block(template: str) -> None:
    thought = {**ANSWER, "reasoning_content": "Hm."}
    header = "<me>\n" if "<me>" in template else "[assistant]"
    one = rendered(template, USER, thought, loss_on_thinking=False)
    assert trained(one) == [header, "Monday.<end>"]
    one = rendered(template, USER, {**ANSWER, "content": "<think>\n</think>Monday."})
    assert trained(one) == [header, "Monday.<end>"]


def test_thinking_between_marks_that_are_not_known_is_refused_where_it_is_not_to_be_trained() -> (
    None
):
    template = EVERY.replace(
        "{{ m.content }}",
        "{{ '(thinks: ' + m.reasoning_content + ')' if m.reasoning_content }}{{ m.content }}",
    )
    thought = {**ANSWER, "reasoning_content": "Monday."}
    with pytest.raises(ConversationError, match=r"message 1, 'Monday\.'"):
        rendered(template, USER, thought, loss_on_thinking=False)
    assert trained(rendered(template, USER, thought)) == ["(thinks: Monday.)Monday.<end>"]
    dropped = rendered(EVERY, USER, thought, loss_on_thinking=False)  # and said, by chance
    assert trained(dropped) == ["Monday.<end>"]


# Contents.


def part(text: str, **flags: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **flags}


BAD, GOOD = part(" Bad start. ", train=False), part("Good end.")


@pytest.mark.parametrize(
    "family",
    [family for family in FAMILIES if family.name not in ("harmony", "deepseek_r1")],
    ids=lambda family: family.name,
)
def test_parts_of_a_content_are_not_trained(family: Family) -> None:
    said = {"role": "assistant", "content": [part("First. "), BAD, GOOD]}
    (one,) = renderer_of(family).render({"messages": [USER, said]})
    plain = {**said, "content": "First.  Bad start. Good end."}
    (whole,) = renderer_of(family).render({"messages": [USER, plain]})
    text = "".join(trained(one))
    if one.text == whole.text:
        assert text == "".join(trained(whole)).replace(" Bad start. ", "")
    else:  # some write parts apart, or trim each
        assert one.text == text_of(family, [USER, said])
        assert "Bad" not in text
        assert "Good end." in text


@pytest.mark.parametrize("content", [[BAD, GOOD], [GOOD, BAD], [BAD], [GOOD, BAD, part(" ")]])
def test_parts_are_found_at_the_edges_of_a_content(content: list[Any]) -> None:
    for template in (EVERY, TAGGED, EVERY.replace("m.content", "m.content | trim")):
        one = rendered(template, USER, {"role": "assistant", "content": content})
        assert "Bad" not in "".join(trained(one))
        assert trained(one)[-1].endswith("<end>")
        assert ("Good end." in "".join(trained(one))) == (GOOD in content)


def test_a_thinking_that_is_a_part_is_not_trained() -> None:
    content = [part("<think>\nHm.\n</think>\n\n", train=False), part("Monday.")]
    for name in ("qwen3", "nemotron3", "chatml"):
        (family,) = [one for one in FAMILIES if one.name == name]
        talk = [USER, {"role": "assistant", "content": content}]
        (one,) = renderer_of(family).render({"messages": talk})
        assert "Hm." not in "".join(trained(one))
        assert "".join(trained(one)).startswith("Monday.")


def test_parts_of_a_reasoning_are_not_trained() -> None:
    reasoning = [part("No, Tuesday.", train=False), part(" Ah.")]
    (family,) = [one for one in FAMILIES if one.name == "qwen3"]
    talk = [USER, {**ANSWER, "reasoning_content": reasoning}]
    (one,) = renderer_of(family).render({"messages": talk})
    assert trained(one) == ["<think>\n", " Ah.\n</think>\n\nMonday.<|im_end|>"]


def test_a_part_whose_place_is_not_known_is_refused() -> None:
    template = EVERY.replace("m.content", "m.content[:14]")
    with pytest.raises(ConversationError, match=r"message 1\b.*train\b"):
        rendered(template, USER, {"role": "assistant", "content": [BAD, GOOD]})


PARTS = (
    TURN + "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}" + END
)
FIRST_PART = EVERY.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}"
    "{% for part in [] if part in m.content %}{% endfor %}{% endif %}",
)
ONLY_USERS_PARTS = EVERY.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}{% elif m.role == 'user' %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}",
)


@pytest.mark.parametrize("template", [EVERY, PARTS, FIRST_PART, ONLY_USERS_PARTS])
def test_contents_are_given_as_a_template_takes_them(template: str) -> None:
    parts = {"role": "assistant", "content": [part("Mon"), part("day.")]}
    for said in (ANSWER, parts):
        for asked in (USER, {**USER, "content": [part("Which "), part("day?")]}):
            one = rendered(template, {"role": "system", "content": "Hm."}, asked, said)
            assert one.text == "[system]Hm.<end>[user]Which day?<end>[assistant]Monday.<end>"
            assert trained(one) == ["Monday.<end>"]


def test_a_content_is_none_only_where_a_template_does_not_fail_of_it() -> None:
    asks = "{% if m.content is none %}{% else %}{{ m.content }}{% endif %}"
    fails = asks.replace("{{ m.content }}", "{{ m.content if m.content | length }}")
    twice = "{{ m.content if m.content | length and m.content is not none }}"
    for content in (asks, fails, twice):
        template = EVERY.replace("{{ m.content }}", content)
        for none in ({"content": None}, {}):
            said = {k: v for k, v in calling(call_of({})).items() if k != "content"} | none
            one = rendered(template, USER, said)
            assert one.text.endswith("[assistant]<call>day_of({})</call><end>")
