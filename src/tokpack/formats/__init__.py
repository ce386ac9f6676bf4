"""Token ids in formats of other programs: read, write, convert."""

from tokpack.formats.conversion import ConvertResult as ConvertResult
from tokpack.formats.conversion import convert as convert
