"""The token that ends a turn: whether it is trained, and appended where that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from support.chat_twin import DATE, FAMILIES, text_of

from tokpack.chat import ChatOptions
from tokpack.chat.renderer import Renderer
from tokpack.chat.template import ChatTemplate
from tokpack.errors import UsageError

USER = {"role": "user", "content": "Which day?"}
ANSWER = {"role": "assistant", "content": "Monday."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "day_of", "arguments": {"place": "Bern"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "Mo", "tool_call_id": "call00001", "name": "day_of"}
THOUGHT = {"reasoning_content": "Hm."}
LATER = {"role": "assistant", "content": "Tuesday.", **THOUGHT}
AGENT = [USER, {**CALL, **THOUGHT}, RESULT, {**ANSWER, **THOUGHT}, USER, LATER]
BY_NAME = {family.name: family for family in FAMILIES}


def made(name: str, talk: list[dict[str, Any]], **options: Any) -> list[Any]:
    """The texts of a conversation with a family's template."""
    chosen = ChatOptions(variables={"date": DATE}, **options)
    renderer = Renderer(ChatTemplate(BY_NAME[name].source, BY_NAME[name].tokens), chosen)
    return renderer.render({"messages": talk})


def trained(one: Any) -> list[str]:
    return [one.text[begin:end] for begin, end in one.trained]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_answers_without_a_trained_end_are_counted(family: Any) -> None:
    """Only where the next message begins with it, the last one has none."""
    untrained = family.name in ("glm4", "glm4_5")
    for answers, options in ((1, {}), (2, {"append_eot": True}), (2, {"loss_on_eot": False})):
        (one,) = made(family.name, [USER, ANSWER] * answers, rewriting="as-is", **options)
        assert len(one.begins) == answers
        assert one.stops_untrained == (untrained and not options)
    if family.tools and family.name != "jamba":
        call = CALL
        if family.text_arguments:
            call = {**CALL, "tool_calls": [{**CALL["tool_calls"][0]}]}  # type: ignore[dict-item]
        (one,) = made(family.name, [USER, call])
        assert one.stops_untrained == untrained


def test_the_end_of_a_turn_that_the_next_one_begins_with_is_appended_and_trained() -> None:
    for talk, stop in (([USER, ANSWER], "<|user|>"), ([USER, CALL], "<|observation|>")):
        (one,) = made("glm4_5", talk, append_eot=True)
        assert one.text == text_of(BY_NAME["glm4_5"], talk) + stop
        assert trained(one)[-1].endswith(("Monday.", "</tool_call>")[stop != "<|user|>"] + stop)
        assert one.turns[-1][1] == len(one.text)
        (one,) = made("glm4_5", talk, append_eot=True, loss_on_eot=False)
        assert one.text.endswith(stop)
        assert not trained(one)[-1].endswith(stop)
        (one,) = made("glm4_5", talk, append_eot=True, loss="all")
        assert trained(one) == [one.text]
        assert one.text.endswith(stop)


def test_each_split_answer_ends_with_it() -> None:
    plain = made("glm4_5", AGENT, rewriting="split")
    assert [one.stops_untrained for one in plain] == [1, 1, 1]
    ended = made("glm4_5", AGENT, rewriting="split", append_eot=True)
    stops = ["<|observation|>", "<|user|>", "<|user|>"]
    for before, one, stop in zip(plain, ended, stops, strict=True):
        assert one.text == before.text + stop
        assert trained(one) == [trained(before)[0] + stop]
        assert one.stops_untrained == 0


@pytest.mark.parametrize("name", ["chatml", "qwen3", "harmony", "gemma4", "jamba", "llama3"])
def test_nothing_is_appended_where_it_is_there(name: str) -> None:
    for talk in ([USER, ANSWER], [USER, ANSWER, USER]):
        (plain,) = made(name, talk, rewriting="as-is")
        (one,) = made(name, talk, rewriting="as-is", append_eot=True)
        assert (one.text, one.trained) == (plain.text, plain.trained)


LAST_HAS_NONE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{{ '<end>' if not loop.last or m.role == 'user' }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NONE = "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}"
TAGGED = LAST_HAS_NONE.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}",
)


@pytest.mark.parametrize(
    ("template", "stop", "left"),
    [(LAST_HAS_NONE, "<end>", 0), (NONE, "</s>", 1), (TAGGED, "<end>", 1)],
)
def test_what_is_appended_is_what_the_template_writes_or_else_the_end_of_a_sequence(
    template: str, stop: str, left: int
) -> None:
    chosen = ChatOptions(append_eot=True, variables={"eos_token": "</s>"} if left else {})
    source = template + "{{ '' if eos_token is defined }}" * bool(left)
    (one,) = Renderer(ChatTemplate(source), chosen).render({"messages": [USER, ANSWER] * 2})
    assert one.text.endswith(stop)
    assert trained(one)[-1].endswith("Monday." + "\n" * (template == NONE) + stop) or (
        trained(one)[-1] == stop
    )
    assert one.stops_untrained == left


def test_without_any_token_nothing_can_be_appended() -> None:
    renderer = Renderer(NONE, ChatOptions(append_eot=True))
    with pytest.raises(UsageError, match="eos_token"):
        renderer.render({"messages": [USER, ANSWER]})
    renderer.render({"messages": [USER, ANSWER, USER]})
