"""Records of other programs become the same messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpack.chat import ChatOptions, ConversationError
from tokpack.chat.records import OWN, Conversation, RecordReader, detect

USER, ANSWER = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {"name": "f", "arguments": {"x": 1}}


def read(record: dict[str, Any], *, parts: bool = False, **options: Any) -> list[Conversation]:
    """The conversations of a record."""
    taken = {"user": False, "assistant": False} if parts else {}
    return RecordReader(ChatOptions(**options), parts=taken, none=False).read(record)


def messages_of(record: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The messages of a record's one conversation."""
    (conversation,) = read(record, **options)
    return conversation.messages


def reason(record: dict[str, Any], **options: Any) -> str:
    """Why a record is refused."""
    with pytest.raises(ConversationError) as caught:
        read(record, **options)
    return caught.value.reason


FORMS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, ANSWER]},
    "conversations": {
        "conversations": [
            {"from": "human", "value": "Hello"},
            {"from": "gpt", "value": "Good day"},
        ]
    },
    "prompt and completion": {"prompt": "Hello", "completion": "Good day"},
    "alpaca": {"instruction": "Hello", "input": "", "output": "Good day"},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_recognized_and_read(form: str) -> None:
    assert detect([FORMS[form], {"text": "x"}], ChatOptions()) == form
    assert messages_of(FORMS[form]) == [USER, ANSWER]
    with_system = {**FORMS[form], "system": "Be kind."}
    assert messages_of(with_system) == [SYSTEM, USER, ANSWER]


def test_several_forms_are_all_named() -> None:
    assert detect(FORMS.values(), ChatOptions()) == " or ".join(FORMS)
    assert detect([{"text": "x"}], ChatOptions()) == ""


def test_messages_may_be_json_and_under_another_key() -> None:
    record = {"talk": '[{"role": "user", "content": "Hello"}]'}
    assert messages_of(record, messages_key="talk") == [USER]
    assert reason(record) == "no conversation"
    assert reason(record, messages_key="other") == "no conversation"


def test_an_alpaca_input_follows_its_instruction() -> None:
    record = {"instruction": "Add", "input": "1 and 2", "output": "3"}
    assert messages_of(record)[0]["content"] == "Add\n1 and 2"


@pytest.mark.parametrize("wrong", [{"instruction": ["Add"]}, {"input": 7}, {"output": 7}])
def test_alpaca_of_other_than_texts_is_refused(wrong: dict[str, Any]) -> None:
    assert reason({**FORMS["alpaca"], **wrong}) == "malformed message"


def test_a_text_of_hh_rlhf_may_end_where_an_answer_begins() -> None:
    record = {"prompt": "\n\nHuman: Hello\n\nAssistant:", "chosen": "Good day", "rejected": "No"}
    assert read(record)[0].messages == [USER, ANSWER]
    chosen, _ = read({**record, "prompt": "\n\nHuman: "})
    assert chosen.messages == [{**USER, "content": ""}, ANSWER]


def test_only_the_completion_is_trained() -> None:
    record = {"prompt": [SYSTEM, USER, ANSWER, USER], "completion": [ANSWER]}
    (conversation,) = read(record)
    assert conversation.messages == [SYSTEM, USER, ANSWER, USER, ANSWER]
    assert conversation.first_trained == 4


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "No"}]},
        {"prompt": "Hello", "chosen": "Good day", "rejected": "No"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "No"}]},
        {"prompt": [USER], "chosen": "Good day", "rejected": "No"},
        {
            "prompt": "Hello",
            "chosen": [USER, ANSWER],
            "rejected": [USER, {**ANSWER, "content": "No"}],
        },
        {
            "prompt": [{"from": "human", "value": "Hello"}],
            "chosen": [USER, {**ANSWER, "name": None}],
            "rejected": [USER, {"role": "gpt", "content": "No"}],
        },
    ],
)
def test_pairs_are_trained_from_where_they_differ(record: dict[str, Any]) -> None:
    chosen, rejected = read(record)
    assert chosen.messages == [USER, ANSWER]
    assert rejected.messages == [USER, {**ANSWER, "content": "No"}]
    assert chosen.first_trained == rejected.first_trained == 1
    assert detect([record], ChatOptions()) == "pairs"


def test_pairs_may_have_other_keys() -> None:
    record = {"prompt": "Hello", "good": "Good day", "bad": "No"}
    assert [one.messages[-1]["content"] for one in read(record, pairs=("good", "bad"))] == [
        "Good day",
        "No",
    ]
    assert reason({"good": "x"}, pairs=("good", "bad")) == "no conversation"


def test_of_a_pair_of_the_same_answers_nothing_is_trained() -> None:
    for one in read({"prompt": "Hello", "chosen": "x", "rejected": "x"}):
        assert one.first_trained == len(one.messages)


def test_roles_of_other_programs_and_of_the_request() -> None:
    said = {"from": "bing", "value": "Good day"}
    assert messages_of({"conversations": [USER, said]})[1] == ANSWER
    odd = {"messages": [{"role": "critic", "content": "Hm"}, ANSWER]}
    assert reason(odd) == "unknown role"
    assert messages_of(odd, role_map={"critic": "user"})[0]["role"] == "user"
    assert reason({"messages": [{"role": 7, "content": "x"}]}) == "unknown role"


def test_a_call_of_sharegpt_is_a_tool_call() -> None:
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'}
    (message,) = messages_of({"conversations": [call]})
    assert message == {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": CALL}],
    }


@pytest.mark.parametrize("value", ["7", '["f"]', "{"])
def test_a_call_of_sharegpt_that_is_none_is_refused(value: str) -> None:
    talk = [{"from": "function_call", "value": value}]
    assert reason({"conversations": talk}) == "malformed message"


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}, "not JSON"])
def test_arguments_of_calls_stay_as_they_are(arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    record = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert messages_of(record)[0]["tool_calls"] == [call]


def test_parts_of_text_are_joined_unless_the_template_reads_them() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    record = {"messages": [{"role": "user", "content": parts}]}
    assert messages_of(record) == [USER]
    assert messages_of(record, parts=True)[0]["content"] == parts


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": "Look", "images": ["a.png"]},
        {"role": "user", "content": "Look", "video": "a.mp4"},
    ],
)
def test_media_are_refused_by_name(message: dict[str, Any]) -> None:
    assert reason({"messages": [message]}) == "has images, audio or video"


def test_empty_lists_of_media_are_none() -> None:
    assert messages_of({"messages": [{**USER, "images": []}]})[0]["content"] == "Hello"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "empty conversation"),
        ("[]", "empty conversation"),
        ("{", "malformed message"),
        (7, "no conversation"),
        ({"role": "user"}, "no conversation"),
        ([7], "malformed message"),
        ([{"role": "user"}], "malformed message"),
        ([{"role": "user", "content": None}], "malformed message"),
        ([{"role": "user", "content": 7}], "malformed message"),
        ([{"role": "user", "content": [7]}], "malformed message"),
        ([{"content": "Hello"}], "malformed message"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, expected: str) -> None:
    assert reason({"messages": messages}) == expected


def test_values_that_are_none_are_not_there() -> None:
    record = {"messages": [{**USER, "name": None, "tool_calls": None}, ANSWER], "tools": None}
    (conversation,) = read(record)
    assert conversation.messages == [USER, ANSWER]
    assert conversation.variables == {}


def test_tools_documents_and_variables_go_to_the_template() -> None:
    record = {
        "messages": [USER],
        "tools": '[{"name": "f"}]',
        "documents": [{"title": "a", "text": "b"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert read(record)[0].variables == {
        "enable_thinking": False,
        OWN: "{'enable_thinking': False}",
        "tools": [{"name": "f"}],
        "documents": [{"title": "a", "text": "b"}],
    }


@pytest.mark.parametrize("tools", [7, "{", "7", {"name": "f"}])
def test_tools_that_are_no_list_are_refused(tools: Any) -> None:
    assert reason({"messages": [USER], "tools": tools}) == "malformed message"


def test_reasoning_has_the_names_that_transformers_gives_it() -> None:
    (message,) = messages_of({"messages": [{**ANSWER, "reasoning": "Hm"}]})
    assert (message["reasoning_content"], message["thinking"]) == ("Hm", "Hm")


def test_weights_are_numbers_from_0() -> None:
    record = {"messages": [USER], "w": np.float64(0.5)}
    assert read(record, weight_key="w")[0].weight == 0.5
    for wrong in (None, -1, "much", float("nan")):
        assert reason({**record, "w": wrong}, weight_key="w") in ("no weight", "no number")


@pytest.mark.parametrize("wrong", [{"weight": 0.5}, {"weight": "0"}, {"train": "false"}])
def test_a_message_is_trained_or_not(wrong: dict[str, Any]) -> None:
    assert reason({"messages": [USER, {**ANSWER, **wrong}]}) == "malformed message"
    for said, untrained in (({"weight": 0.0}, [1]), ({"train": True}, []), ({"weight": None}, [])):
        (found,) = read({"messages": [USER, {**ANSWER, **said}]})
        assert list(found.untrained) == untrained


def test_a_message_without_a_role_says_its_keys() -> None:
    with pytest.raises(
        ConversationError, match="message 1 has no role: its keys are speaker, text"
    ):
        read({"messages": [USER, {"speaker": "a", "text": "b"}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("messages", "conversations", "prompt", "completion", "chosen", "rejected", "system"),
        *("instruction", "input", "output", "tools", "documents", "chat_template_kwargs"),
    ]
)
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "from", "value", "tool_calls", "images", "name"]),
        st.sampled_from(["user", "assistant", "human", "gpt", "function_call"]) | JSON,
        max_size=4,
    ),
    max_size=4,
)


@given(st.dictionaries(KEYS, JSON | MESSAGES, max_size=5))
def test_any_record_is_read_or_refused(record: dict[str, Any]) -> None:
    try:
        found = read(record)
    except ConversationError:
        return
    for conversation in found:
        assert conversation.messages
        assert all(isinstance(one["role"], str) for one in conversation.messages)
