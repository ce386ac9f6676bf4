"""What other programs say beside the names of Config's fields: tables only.

From Megatron-LM (v1.1.5 and later), Megatron-DeepSpeed, GPT-NeoX and DeepSpeed's JSON, in which a
dotted name is a path. Names are written with underscores.
"""

# Settings that others are derived from, and DeepSpeed's own: their type and other names.
DERIVED = {
    "betas": ("tuple[float, float]", "optimizer.params.betas"),
    "deepspeed_config": ("str", ""),
    "gradient_accumulation_steps": ("int", "gas"),
    "init_method": ("str", ""),
    "initial_scale_power": ("float", "fp16.initial_scale_power"),
    "lr_decay_tokens": ("int", ""),
    "lr_warmup_tokens": ("int", ""),
    "nproc": ("int", ""),
    "output_layer_init_method": ("str", ""),
    "train_tokens": ("int", ""),
    "zero_optimization.allgather_bucket_size": ("int", "zero_allgather_bucket_size"),
    "zero_optimization.reduce_bucket_size": ("int", "zero_reduce_bucket_size"),
}

# A name that is true or false, and the setting that it makes when it is true.
SWITCHES = {
    "bf16": ("precision", "bf16"),
    "bf16.enabled": ("precision", "bf16"),
    "bfloat16.enabled": ("precision", "bf16"),
    "contigious_checkpointing": ("activation_checkpointing.contiguous_memory_optimization", True),
    "deepspeed": ("engine", "deepspeed"),
    "disable_bias_linear": ("add_bias_linear", False),
    "fp16": ("precision", "fp16"),
    "fp16.enabled": ("precision", "fp16"),
    "profile_backward": ("activation_checkpointing.profile", True),
    "swiglu": ("activation", "swiglu"),
    "synchronize_each_layer": ("activation_checkpointing.synchronize_checkpoint_boundary", True),
    "use_rotary_position_embeddings": ("position_embedding_type", "rope"),
    "zero_contigious_gradients": ("zero_optimization.contiguous_gradients", True),
    "zero_reduce_scatter": ("zero_optimization.reduce_scatter", True),
}

# Words for a value that have another name here.
WORDS = {
    "bfloat16": "bf16",
    "layernorm": "LayerNorm",
    "learned": "learned_absolute",
    "rmsnorm": "RMSNorm",
    "rotary": "rope",
}

# Settings with one possible value: what it is, as a regular expression.
ONLY = {
    "attention_config": r"\[\[\['(global|flash)'\], .*\]\]",
    "optimizer": "adam|adamw",
    "optimizer.type": "adam|adamw",
    "scheduler.type": "",
}

# Known, with nothing to do here: how many words follow such a flag, and the flags.
NOTHING = {
    0: """
    abort_on_unmet_fused_kernel_constraints accumulate_allreduce_grads_in_fp32
    attention_softmax_in_fp32 bias_dropout_fusion bias_gelu_fusion debug
    deepspeed_activation_checkpointing deepspeed_mpi fp16_lm_cross_entropy
    fp32_residual_connection group_query_attention log_learning_rate_to_tensorboard
    log_loss_scale_to_tensorboard log_memory_to_tensorboard log_num_zeros_in_grad
    log_optimizer_states_to_tensorboard log_params_norm log_throughput
    log_world_size_to_tensorboard mmap_warmup no_async_tensor_model_parallel_allreduce
    no_bias_dropout_fusion no_bias_gelu_fusion no_gradient_accumulation_fusion no_load_rng
    no_masked_softmax_fusion no_pipeline_parallel no_query_key_layer_scaling no_rope_fusion
    no_save_rng overlap_grad_reduce overlap_param_gather override_opt_param_scheduler rope_fusion
    scaled_masked_softmax_fusion scaled_upper_triang_masked_softmax_fusion scattered_embeddings
    sequence_parallel split_transformers sync_tp_duplicated_parameters
    use_checkpoint_opt_param_scheduler use_cpu_initialization use_distributed_optimizer
    use_flash_attn use_flash_attn_v1 use_flash_attn_v2 use_mcore_models""",
    1: """
    attention_backend checkpoint_scale data_impl ddp_impl distributed_backend
    fp16.fp16 hostfile include launcher local_rank master_addr master_port max_restarts merge_file
    num_gpus num_nodes num_workers output_layer_parallelism rdzv_backend rdzv_endpoint tee
    tensorboard_log_interval tokenizer_model tokenizer_name_or_path tokenizer_type
    transformer_impl use_wandb wandb_group wandb_project wandb_team""",
}

# DeepSpeed's blocks, and names beside them, that a configuration file may hold.
DEEPSPEED = (
    "activation_checkpointing bf16 bfloat16 comms_logger deepspeed_json dump_state flops_profiler "
    "fp16 gradient_predivide_factor memory_breakdown optimizer prescale_gradients scheduler "
    "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer zero_optimization"
)
