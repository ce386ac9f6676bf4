"""Token ids in formats of other programs: read, write, convert."""

from tokpack.formats.conversion import ConvertResult, convert

__all__ = ["ConvertResult", "convert"]
