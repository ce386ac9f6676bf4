"""Code of a user for a type checker: `make lint` runs one, in an environment of numpy alone.

Where a comment says that an error is expected, it would be one that there is none.
"""

from typing import Any, assert_type

import numpy.typing as npt

from tokpack import GPTDataset, SampleIterator, encode, open_blend, plan

train = GPTDataset("wiki", 8)
batches = SampleIterator(train, 2)
assert_type(next(batches), dict[str, npt.NDArray[Any]])
assert_type(next(iter(batches)), dict[str, npt.NDArray[Any]])
assert_type(next(SampleIterator(train, 2, load=lambda numbers: [1])), int)
GPTDataset("wiki", 8, seed=1, packing="best_fit", samples=None)
GPTDataset("wiki", 8, seed="one")  # type: ignore[arg-type]
GPTDataset("wiki", 8, sed=1)  # type: ignore[call-arg]
open_blend("blend.json", temperature=2.0, seed=1)
open_blend("blend.json", epochs="two")  # type: ignore[arg-type]
encode(["a"], "a", workers=2, chat=True, pattern="qwen2", output_names=None)
encode(["a"], "a", workers="two")  # type: ignore[call-overload]
plan(["a"], "a", dtype="int32")
plan(["a"], "a", dtype="int64")  # type: ignore[arg-type]
plan(["a"], "a", workers=2)  # type: ignore[call-arg]
