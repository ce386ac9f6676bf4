"""The orders and index files of the Megatron family, equal to those programs bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokpack.face import face

if TYPE_CHECKING:
    from tokpack.samples.megatron.cache_files import IndexFiles as IndexFiles
    from tokpack.samples.megatron.cache_files import IndexRequest as IndexRequest
    from tokpack.samples.megatron.cache_files import write_index_files as write_index_files
    from tokpack.samples.megatron.neox_packing import NeoxPackedOrder as NeoxPackedOrder
    from tokpack.samples.megatron.orders import MegatronOrder as MegatronOrder
    from tokpack.samples.megatron.orders import blend_request as blend_request
    from tokpack.samples.megatron.orders import megatron_blend as megatron_blend
    from tokpack.samples.megatron.orders import megatron_index_key as megatron_index_key

__getattr__, __all__ = face(
    __name__,
    {
        "cache_files": "IndexFiles IndexRequest write_index_files",
        "neox_packing": "NeoxPackedOrder",
        "orders": "MegatronOrder blend_request megatron_blend megatron_index_key",
    },
)
