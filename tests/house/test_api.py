"""The face of the package: what can be imported, and options that have one name everywhere."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

import numpy as np
import pytest

import tokpack
from tokpack import errors
from tokpack.api import EncodeRequest

if TYPE_CHECKING:
    from pathlib import Path


def test_every_exported_name_can_be_imported() -> None:
    for name in tokpack.__all__:
        assert getattr(tokpack, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tokpack.nothing  # type: ignore[attr-defined]


def test_every_exception_is_exported() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(tokpack.__all__)


def test_encode_has_the_options_of_encode_options() -> None:
    parameters = inspect.signature(tokpack.encode).parameters
    fields = {field.name: field for field in dataclasses.fields(tokpack.EncodeOptions)}
    assert set(parameters) - {"progress"} == set(fields)
    for name in set(parameters) - {"inputs", "output", "output_names", "keys", "progress"}:
        assert parameters[name].default == fields[name].default, name
        assert parameters[name].annotation == fields[name].type, name
    assert fields["keys"].default == (parameters["keys"].default,)
    typed = {name: given.__forward_arg__ for name, given in EncodeRequest.__annotations__.items()}
    positional = {"inputs", "output", "keys"}
    assert typed == {n: p.annotation for n, p in parameters.items() if n not in positional}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Six documents of one sequence each."""
    with tokpack.MMapIndexedDatasetBuilder(tmp_path / "six.bin", dtype=np.uint16) as builder:
        for number in range(6):
            builder.add_item([number] * (number + 1))
            builder.end_document()
        builder.finalize(tmp_path / "six.idx")
    return tmp_path / "six"


def test_operations_take_paths(prefix: Path, tmp_path: Path) -> None:
    merged = tokpack.merge([prefix, prefix], tmp_path / "twelve")
    assert merged.documents == 12
    parts = tokpack.split(tmp_path / "twelve", tmp_path / "cut", documents=4)
    assert [manifest.documents for _, manifest in parts] == [4, 4, 4]
    tokpack.convert(prefix, tmp_path / "wide", dtype="int32")
    assert tokpack.MMapIndexedDataset(tmp_path / "wide").dtype == np.int32
    tokpack.convert(prefix, tmp_path / "flat.npy", to="npy")
    assert np.load(tmp_path / "flat.npy").sum() == sum(n * (n + 1) for n in range(6))
    assert tokpack.verify(prefix).tokens == 21
    assert tokpack.stats(prefix).tokens == 21
    (tmp_path / "six.idx").unlink()
    repaired = tokpack.repair(prefix, tmp_path / "mended", eod=5, dtype="uint16")
    assert repaired.tokens == 21
