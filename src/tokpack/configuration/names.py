"""Tables of the names that flags and files may have besides those of Config's fields.

Most are those of other programs: Megatron-LM (v1.1.5 and later), Megatron-DeepSpeed, GPT-NeoX, and
DeepSpeed's JSON, in which a dotted name is a path. Names are written with underscores.
"""

from __future__ import annotations

from .setting import Setting

# Settings that are no fields of Config: fields are derived from them, or DeepSpeed is given them.
DERIVED = (
    Setting("attention_config"),
    Setting("betas", float, many=True, names="optimizer.params.betas"),
    Setting("bias_gelu_fusion", bool),
    Setting("conf_dir", str),
    Setting("cpu_optimizer", bool, names="cpu_torch_adam"),
    Setting("debug", bool, default=False, group="run", help="show the traceback of an error"),
    Setting(
        "deepspeed_config",
        str,
        group="parallel",
        help="DeepSpeed's JSON; the flags must not contradict it",
        value="FILE",
    ),
    Setting(
        "deepspeed_config_wins",
        bool,
        default=False,
        group="parallel",
        help="where the flags contradict it, take what it says, as other programs do",
    ),
    Setting("disable_bias_linear", bool),
    Setting("expansion_factor", float),
    Setting("gradient_accumulation_steps", int, names="gas"),
    Setting("init_method", str),
    Setting("initial_scale_power", float, names="fp16.initial_scale_power"),
    Setting("intermediate_size", int),
    Setting(
        "like",
        str,
        choices="megatron bigscience microsoft neox",
        group="run",
        help="defaults and order of another program: {choices}",
        value="NAME",
    ),
    Setting("lr_decay_tokens", int),
    Setting("lr_warmup_tokens", int),
    Setting("mlp_multiple_of", int),
    Setting("mlp_type", str),
    Setting("no_load_optim", bool),
    Setting("no_position_embedding", bool),
    Setting("nproc", int, group="parallel", help="start N processes on this machine"),
    Setting("openai_gelu", bool),
    Setting("output_layer_init_method", str),
    Setting("recompute_granularity", str, names="activations_checkpoint_granularity"),
    Setting("recompute_method", str, names="activations_checkpoint_method"),
    Setting("rms_norm_epsilon", float),
    Setting("sliding_window_width", int),
    Setting("test_data_paths", str, many=True),
    Setting("test_data_weights", float, many=True),
    Setting("train_data_paths", str, many=True),
    Setting("train_data_weights", float, many=True),
    Setting("train_tokens", int),
    Setting("use_bias_in_attn_linear", bool),
    Setting("use_bias_in_mlp", bool),
    Setting("use_bias_in_norms", bool),
    Setting("use_wandb", bool),
    Setting("valid_data_paths", str, many=True),
    Setting("valid_data_weights", float, many=True),
    Setting("zero_optimization.allgather_bucket_size", int, names="zero_allgather_bucket_size"),
    Setting("zero_optimization.reduce_bucket_size", int, names="zero_reduce_bucket_size"),
)

# A name that is true or false, and the setting that it makes when it is true.
SWITCHES = {
    "bf16": ("precision", "bf16"),
    "bf16.enabled": ("precision", "bf16"),
    "bfloat16.enabled": ("precision", "bf16"),
    "contigious_checkpointing": ("activation_checkpointing.contiguous_memory_optimization", True),
    "contiguous_checkpointing": ("activation_checkpointing.contiguous_memory_optimization", True),
    "deepspeed": ("engine", "deepspeed"),
    "fp16": ("precision", "fp16"),
    "fp16.enabled": ("precision", "fp16"),
    "muon_no_split_qkv": ("muon_split_qkv", False),
    "profile_backward": ("activation_checkpointing.profile", True),
    "swiglu": ("activation", "swiglu"),
    "synchronize_each_layer": ("activation_checkpointing.synchronize_checkpoint_boundary", True),
    "use_distributed_optimizer": ("zero_stage", 1),
    "use_rotary_position_embeddings": ("position_embedding_type", "rope"),
    "zero_contigious_gradients": ("zero_optimization.contiguous_gradients", True),
    "zero_contiguous_gradients": ("zero_optimization.contiguous_gradients", True),
    "zero_reduce_scatter": ("zero_optimization.reduce_scatter", True),
}

# Values that other programs call by another word, and what they are here.
WORDS = {
    "adam": "adam",
    "adamw": "adam",
    "dist_muon": "muon",
    "bfloat16": "bf16",
    "layernorm": "LayerNorm",
    "learned": "learned_absolute",
    "rmsnorm": "RMSNorm",
    "rotary": "rope",
}

# Settings with one possible value: what it is, as a regular expression. "false" takes no word.
ONLY = {
    "amp.enabled": "false",
    "checkpoint_scale": "linear",
    "context_parallel_size": "1",
    "curriculum_learning.enabled": "false",
    "data_efficiency.enabled": "false",
    "dataloader_type": "single",
    "dataset_impl": "gpt2",
    "ds_sequence_parallel_size": "1",
    "expert_model_parallel_size": "1",
    "fp32_residual_connection": "false",
    "gpt_j_tied": "false",
    "moe_expert_parallel_size": "1",
    "moe_num_experts": "1",
    "muon_coefficient_type": "quintic",
    "muon_scalar_optimizer": "adam",
    "muon_tp_mode": "duplicated|distributed",
    "num_experts": "1",
    "onnx_safe": "false",
    "optimizer.type": "adam|adamw",
    "output_layer_parallelism": "column",
    "pack_impl": "packed",
    "progressive_layer_drop.enabled": "false",
    "scheduler.type": "",
    "sparse_attention.mode": "",
    "te_columnparallel": "false",
    "te_fp8_mha": "false",
    "te_layernorm_mlp": "false",
    "te_mha": "false",
    "te_rowparallel": "false",
    "train_epochs": "1",
    "train_impl": "normal",
    "use_bnb_optimizer": "false",
    "use_checkpoint_lr_scheduler": "false",
    "use_checkpoint_opt_param_scheduler": "false",
    "use_mup": "false",
    "use_qk_layernorm": "false",
    "weight_by_num_documents": "false",
}

# Flags that are accepted and have nothing to do here, by the number of words that follow them.
NOTHING = {
    0: """
    abort_on_unmet_fused_kernel_constraints accumulate_allreduce_grads_in_fp32
    apply_query_key_layer_scaling attention_softmax_in_fp32 bias_dropout_fusion
    checkpoint_validation_with_forward_pass create_moe_param_group
    deepspeed_activation_checkpointing deepspeed_mpi deepspeed_slurm disable_mem_efficient_ln
    disable_moe_token_dropping ds_fused_adam exit_signal_handler fp32_allreduce
    group_query_attention layernorm_fusion lazy_mpu_init log_grad_norm
    log_learning_rate_to_tensorboard log_loss_scale_to_tensorboard log_throughput manual_gc
    mmap_warmup no_async_tensor_model_parallel_allreduce no_bias_dropout_fusion
    no_contiguous_buffers_in_local_ddp no_create_attention_mask_in_dataloader
    no_gradient_accumulation_fusion no_load_rng no_log_learnig_rate_to_tensorboard
    no_log_loss_scale_to_tensorboard no_masked_softmax_fusion no_mmap_bin_files
    no_persist_layer_norm no_pipeline_parallel no_query_key_layer_scaling no_rope_fusion
    no_save_rng no_scatter_gather_tensors_in_pipeline override_lr_scheduler
    override_opt_param_scheduler overlap_grad_reduce rmsnorm_fusion rope_fusion
    rotary_save_freqs_buffer scaled_masked_softmax_fusion
    scaled_upper_triang_masked_softmax_fusion sync_tp_duplicated_parameters trust_remote_code
    universal_checkpoint
    use_contiguous_buffers_in_ddp use_cpu_initialization use_dist_ckpt use_flash_attn
    use_flash_attn_builder use_flash_attn_triton use_flash_attn_v1 use_flash_attn_v2
    use_flashattn_swiglu use_mcore_models use_pin_memory use_shared_fs wandb_init_all_ranks""",
    1: """
    attention_backend ckpt_format codecarbon_dir comet_experiment_name comet_others comet_project
    comet_tags comet_workspace comment data_impl ddp_impl dist_ckpt_format distributed_backend
    empty_unused_memory_level exclude fp16.fp16 fused_kernels_build_path global_num_gpus hostfile
    include launcher local_rank log_level log_level_replica log_path manual_gc_interval master_addr
    master_port max_restarts memory_profiling_path merge_file moe_eval_capacity_factor
    moe_loss_coeff moe_min_capacity moe_train_capacity_factor num_dataset_builder_threads num_gpus
    num_nodes muon_fp32_matmul_prec num_workers peak_theoretical_tflops profile_step_start
    profile_step_stop rdzv_backend rdzv_endpoint te_fp8_amax_compute_algo te_fp8_amax_history_len
    te_fp8_format te_fp8_margin te_fp8_wgrad tee tensorboard_log_interval timing_log_level
    timing_log_option tokenizer_model tokenizer_name_or_path tokenizer_type transformer_impl
    valid_num_workers wandb_host weighted_sampler_alpha""",
}

# The same for what is not implemented here but would change no result, only how it is computed or
# what is logged: a note says so.
SAME = {
    0: """
    fp16_lm_cross_entropy log_grad_pct_zeros log_memory_to_tensorboard
    log_num_zeros_in_grad log_optimizer_states log_optimizer_states_to_tensorboard log_param_norm
    log_params_norm log_world_size_to_tensorboard memory_profiling no_save_optim
    overlap_p2p_communication overlap_param_gather profile
    scattered_embeddings split_transformers tp_comm_overlap use_comet""",
    1: """
    num_layers_per_virtual_pipeline_stage pipe_partition_method pp_partition_method""",
}

# Keys of a blend file that are settings of a run too.
BLEND = (
    "allow_empty document_boundaries eod_id eod_mask_loss order reset_attention_mask "
    "reset_position_ids seed seq_length split"
)

# DeepSpeed's blocks, and names beside them, that a configuration file may hold.
DEEPSPEED = (
    "activation_checkpointing bf16 bfloat16 comms_logger communication_data_type csv_monitor "
    "data_types deepspeed_extra_args deepspeed_json dump_state flops_profiler fp16 "
    "gradient_predivide_factor memory_breakdown optimizer prescale_gradients scheduler "
    "sparse_gradients steps_per_print wall_clock_breakdown zero_allow_untested_optimizer "
    "zero_optimization"
)

# Names that only GPT-NeoX has: a file with one of them is read as GPT-NeoX reads it.
NEOX = (
    "attention_config checkpoint_factor checkpoint_scale expansion_factor gpt_j_residual "
    "gpt_j_tied init_method intermediate_size keep_last_n_checkpoints mlp_multiple_of "
    "no_weight_tying norm num_kv_heads output_layer_init_method output_layer_parallelism "
    "pipe_parallel_size pos_emb rms_norm_epsilon rotary_emb_base rotary_pct test_data_paths "
    "train_data_paths use_bias_in_attn_linear use_bias_in_mlp use_bias_in_norms valid_data_paths"
)

# Settings of a file that a flag replaces besides its own: other ways to say the same.
REPLACED = {
    "activation": "bias_gelu_fusion mlp_type openai_gelu",
    "add_bias_linear": "disable_bias_linear use_bias_in_attn_linear use_bias_in_mlp",
    "data_path": "train_data_path train_data_paths train_data_weights",
    "disable_bias_linear": "add_bias_linear use_bias_in_attn_linear use_bias_in_mlp",
    "ffn_hidden_size": "expansion_factor intermediate_size mlp_multiple_of",
    "global_batch_size": "gradient_accumulation_steps",
    "gradient_accumulation_steps": "global_batch_size",
    "init_method_std": "init_method",
    "intermediate_size": "expansion_factor ffn_hidden_size",
    "layernorm_epsilon": "rms_norm_epsilon",
    "output_layer_init_method": "output_init_method_std",
    "test_data_path": "test_data_paths test_data_weights",
    "train_data_path": "data_path train_data_paths train_data_weights",
    "valid_data_path": "valid_data_paths valid_data_weights",
    "wandb_project": "use_wandb",
}

_MEGATRON = {
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "initial_loss_scale": 2.0**32,
    "keep_checkpoints": 0,
    "precision": "fp32",
}
# The defaults of other programs, where they are not those of Config.
DEFAULTS = {
    "megatron": {**_MEGATRON, "order": "megatron"},
    "bigscience": {**_MEGATRON, "order": "bigscience"},
    "microsoft": {**_MEGATRON, "order": "microsoft"},
    "neox": {
        "keep_checkpoints": 0,
        "lr_warmup_fraction": 0.01,
        "order": "neox",
        "precision": "fp32",
        "weight_decay": 0.1,
    },
}
PROGRAMS = {
    "megatron": "Megatron-LM",
    "bigscience": "BigScience's Megatron-DeepSpeed",
    "microsoft": "Microsoft's Megatron-DeepSpeed",
    "neox": "GPT-NeoX",
}

# Names that only one of the programs has, by which its scripts are recognised; see NEOX too.
BIGSCIENCE = (
    "abort_on_unmet_fused_kernel_constraints embed_layernorm kill_switch_path "
    "log_validation_ppl_to_tensorboard pad_vocab_size_to sync_tp_duplicated_parameters "
    "tensorboard_queue_size"
)
MICROSOFT = (
    "create_moe_param_group ds_sequence_parallel_size lr_decay_tokens lr_warmup_tokens "
    "no_pipeline_parallel train_tokens universal_checkpoint use_flash_attn_builder "
    "use_flash_attn_triton use_flash_attn_v1 use_flash_attn_v2"
)
