"""Made by `python tools/commands_page.py` from the records of options; do not edit."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from tokpack.chat.rendered import Rewriting, ToolArguments, Truncate
from tokpack.encoding.options import DType, Empty, OnError, SpecialTokens
from tokpack.samples.blend.spec import Changes, Entries
from tokpack.samples.fim import FIM
from tokpack.samples.orders.rules import OrderName, PackingName
from tokpack.tokenizers import TokenizerFiles

class PlanRequest(TokenizerFiles, total=False):
    chat: bool
    chat_template: str | None
    template_var: Mapping[str, Any] | None
    messages_key: str | None
    prompt_key: str | None
    role_map: Mapping[str, str] | None
    tool_arguments: ToolArguments
    loss: str
    loss_on_eot: bool
    loss_on_tool_calls: bool
    loss_on_thinking: bool
    loss_on_empty_thinking: bool
    append_eot: bool
    rewriting: Rewriting
    max_length: int | None
    truncate: Truncate
    pairs: Sequence[str] | None
    weight_key: str | None
    output_names: Mapping[str, str] | None
    input_format: str
    json_path: str | None
    hf_split: str | None
    limit: int | None
    on_error: OnError
    max_rejects: int | None
    where: str | None
    map: str | Callable[[Any], Any] | None
    map_version: str | None
    empty: Empty
    max_document_bytes: int
    vocab_size: int | None
    special_tokens_count: int | None
    append_eod: bool | None
    eod_token: str | int | None
    prepend_bos: bool
    bos_token: str | int | None
    add_special_tokens: bool
    special_tokens: SpecialTokens
    split_sentences: bool
    keep_newlines: bool
    lang: str
    ftfy: bool
    dtype: DType
    keep: Sequence[str]
    trace: bool
    overwrite: bool

class EncodeRequest(PlanRequest, total=False):
    files: int | None
    scratch: str | None
    workers: int
    report_to: str | None

class CommonOptions(TypedDict, total=False):
    order: OrderName
    seed: int
    split: str | None
    split_by: str
    split_rule: str | None
    add_extra_token: bool
    drop_last: bool
    eod_id: int | None
    pad_id: int | None
    eod_mask_loss: bool
    reset_position_ids: bool
    reset_attention_mask: bool
    document_boundaries: bool
    packing: PackingName
    pad_to_multiple_of: int
    loss: str
    fim: FIM | None
    cache: str | os.PathLike[str] | None

class SampleOptions(CommonOptions, total=False):
    split_index: int
    sequences: tuple[int, int] | None
    epochs: int | None
    samples: int | None

class BlendOptions(CommonOptions, total=False):
    datasets: Entries
    schedule: Changes
    valid: Mapping[str, Entries]
    test: Entries
    by: str
    temperature: float
    seq_length: int
    samples: int | None
    tokens: float | None
    epochs: float | None
    valid_samples: int | None
    test_samples: int | None
    surplus: float
    allow_empty: bool
