"""Many texts at once are the ids of each."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tokenizers_twin import ids as apart

from tokpack.tokenizers import train_bpe
from tokpack.tokenizers.base import borrowed
from tokpack.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from tokpack.tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    path.write_text(train_bpe(["the cat sat on the mat and the dog sat"] * 50, vocab_size=300))
    return load_tokenizer(path)


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8")), max_size=8),
    threads=st.sampled_from([1, 3]),
)
def test_a_batch_is_its_texts(tokenizer: Tokenizer, texts: list[str], threads: int) -> None:
    ids, offsets = tokenizer.encode_batch(texts, threads=threads)
    assert ids.dtype == np.int32
    assert len(offsets) == len(texts) + 1
    rows = [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert rows == (apart(tokenizer, texts) if texts else [])
    assert rows == [tokenizer.encode(text) for text in texts]


def test_one_text_after_the_other_takes_one_encoder(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = tokenizer.encoder
    monkeypatch.setattr(tokenizer, "encoder", lambda **how: built.append("one") or build(**how))
    for mode in ("text", "encode", "text"):
        for text in ("the cat", "sat", "on the mat"):
            assert [tokenizer.encode(text, special_tokens=mode)] == apart(tokenizer, [text], mode)
    assert len(built) == 2 + 9  # the latter are apart()'s


def test_threads_share_long_texts_in_order(tokenizer: Tokenizer) -> None:
    texts = [f"the cat {number} sat on the mat " * 2000 for number in range(40)]
    one, many = (tokenizer.encode_batch(texts, dtype="uint16", threads=n) for n in (1, 4))
    assert one.ids.dtype == np.uint16
    np.testing.assert_array_equal(one.ids, many.ids)
    np.testing.assert_array_equal(one.offsets, many.offsets)
    assert tokenizer.decode(one.ids[one.offsets[7] : one.offsets[8]]) == texts[7]
    assert pickle.loads(pickle.dumps(tokenizer)).encode_batch(["a"]).offsets.tolist() == [0, 1]


def test_an_encoder_is_kept_unless_something_failed(tokenizer: Tokenizer) -> None:
    built = itertools.count()

    def use(*, fail: bool = False) -> int:
        with borrowed(tokenizer, "a test", lambda: next(built)) as number:
            with borrowed(tokenizer, "a test", lambda: next(built)) as other:
                assert other != number  # each has its own
            if fail:
                raise KeyError
            return number

    assert use() == 0
    assert use() in (0, 1)
    with pytest.raises(KeyError):
        use(fail=True)
    assert use() in (0, 1)
    assert next(built) == 3  # 0 and 1, and one in the place of that which failed
