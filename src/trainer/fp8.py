"""Products of the blocks' matrices in fp8, by torchao; embeddings, norms and head stay in bf16.

Each product scales both factors by the largest element of the tensor ("tensorwise" scaling) and
casts them, in the forward and in the backward pass; the input is cast once for both. Results and
sums over ranks stay bf16 and fp32, as without fp8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokpack.errors import UsageError, needs_extra, option

from .tensor import ColumnLinear, RowLinear

if TYPE_CHECKING:
    from torch import Tensor

    from .config.config import Config
    from .model import Stage

MULTIPLE = 16  # of the sizes of a product that GPUs compute in fp8


def use_fp8(config: Config, model: Stage) -> None:
    """Switch the blocks of a model to fp8. UsageError if the device, or a size of the model, does
    not allow it.
    """
    device = model.topology.device
    where = f"{option('fp8')} needs a GPU of compute capability 8.9 or later (Ada, Hopper)"
    if device.type != "cuda":
        raise UsageError(f"{where}, this is a CPU: leave it out")
    if (capability := torch.cuda.get_device_capability(device)) < (8, 9):
        name = torch.cuda.get_device_name(device)
        raise UsageError(f"{where}, {name} has {capability[0]}.{capability[1]}: leave it out")
    tokens = config.micro_batch_size * config.seq_length
    sizes = {"the tokens of a micro batch": tokens}
    for name, weight in model.blocks.named_parameters():
        if weight.ndim == 2:
            sizes |= {f"rows of {name}": weight.shape[0], f"columns of {name}": weight.shape[1]}
    for name, size in sizes.items():
        if size % MULTIPLE:
            raise UsageError(f"{option('fp8')} needs sizes that {MULTIPLE} divides: {name}: {size}")
    convert(model)


def convert(model: Stage, *, emulate: bool = False) -> None:
    """Switch the blocks of a model to fp8; with ``emulate`` results are a GPU's, on any device."""
    with needs_extra("fp8"):
        from torchao.float8.config import Float8LinearConfig
        from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
        from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
        from torchao.float8.float8_training_tensor import GemmInputRole

    config = Float8LinearConfig(emulate=emulate)
    # A torchao module, used only for its product: our layers are split among tensor ranks.
    like = Float8Linear.from_float(torch.nn.Linear(1, 1, bias=False, device="meta"), config)
    multiply: Any = matmul_with_hp_or_float8_args.apply

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        # Cast before the product, so that the weight's gradient needs no second cast.
        rows = hp_tensor_to_float8_dynamic(
            x.to(weight.dtype).flatten(0, -2),
            config.cast_config_input.target_dtype,
            like.linear_mm_config,
            gemm_input_role=GemmInputRole.INPUT,
        )
        product_of_rows = multiply(rows, weight.t(), like.linear_mm_config, config)
        y: Tensor = product_of_rows.unflatten(0, x.shape[:-1])
        return y if bias is None else y + bias.to(y.dtype)

    for module in model.blocks.modules():
        if isinstance(module, (ColumnLinear, RowLinear)):
            module.product = product
