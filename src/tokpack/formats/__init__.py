"""Datasets of token ids in formats of other programs: opened, written, converted."""

from tokpack.formats.convert import ConvertResult, convert

__all__ = ["ConvertResult", "convert"]
