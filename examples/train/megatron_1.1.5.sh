#!/bin/bash
# Megatron-LM v1.1.5 with DeepSpeed, its flag names. ZeRO and its buckets are those of the JSON,
# which alone has an effect there: the flags differ, as in many such scripts.
# Upper-case variables can be set in the environment; arguments are appended to the flags.
set -e

NUM_WORKERS=${NUM_WORKERS:-1}
NUM_GPUS_PER_WORKER=${NUM_GPUS_PER_WORKER:-2}
HOSTFILE=${HOSTFILE:-}
MP_SIZE=${MP_SIZE:-1}
NUM_LAYERS=${NUM_LAYERS:-24}
HIDDEN_SIZE=${HIDDEN_SIZE:-1024}
NUM_ATTN_HEADS=${NUM_ATTN_HEADS:-16}
SEQ_LENGTH=${SEQ_LENGTH:-1024}
BATCHSIZE=${BATCHSIZE:-8}
TRAIN_ITERS=${TRAIN_ITERS:-320000}
EVAL_ITERS=${EVAL_ITERS:-10}

BASE_DATA_PATH=${BASE_DATA_PATH:-/data/Megatron-LM/data}
DATA_PATH=${DATA_PATH:-$BASE_DATA_PATH/indexed_datasets/megatron}
VOCAB_PATH=${VOCAB_PATH:-$BASE_DATA_PATH/gpt2-vocab.json}
MERGE_PATH=${MERGE_PATH:-$BASE_DATA_PATH/gpt2-merges.txt}
CHECKPOINT_PATH=${CHECKPOINT_PATH:-checkpoints/gpt2_345m_ds}

# ZeRO
STAGE=${STAGE:-2}
stage=0
reduce_scatter=true
contigious_gradients=true
rbs=50000000
agbs=5000000000

# Activation checkpointing
chkp_layers=1
PA=${PA:-true}
PA_CPU=${PA_CPU:-true}
CC=${CC:-true}
SYNCHRONIZE=true
PROFILE=true

config_json=${CONFIG_JSON:-./ds_zero_stage_$STAGE.json}
cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $BATCHSIZE,
  "gradient_accumulation_steps": 1,
  "steps_per_print": 10,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $STAGE,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 200000000,
    "allgather_bucket_size": 200000000
  },
  "fp16": {
    "enabled": true,
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1
  },
  "wall_clock_breakdown": false
}
EOT

gpt_options=" \
    --model-parallel-size $MP_SIZE \
    --num-layers $NUM_LAYERS \
    --hidden-size $HIDDEN_SIZE \
    --num-attention-heads $NUM_ATTN_HEADS \
    --seq-length $SEQ_LENGTH \
    --max-position-embeddings $SEQ_LENGTH \
    --batch-size $BATCHSIZE \
    --train-iters $TRAIN_ITERS \
    --lr-decay-iters $TRAIN_ITERS \
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH \
    --data-path $DATA_PATH \
    --vocab-file $VOCAB_PATH \
    --merge-file $MERGE_PATH \
    --data-impl mmap \
    --split 900,50,50 \
    --distributed-backend nccl \
    --lr 1.5e-4 \
    --lr-decay-style cosine \
    --min-lr 1.0e-5 \
    --weight-decay 1e-2 \
    --clip-grad 1.0 \
    --warmup .01 \
    --checkpoint-activations \
    --log-interval 1 \
    --save-interval 10000 \
    --eval-interval 2000 \
    --eval-iters $EVAL_ITERS \
    --fp16 \
    --scattered-embeddings \
    --split-transformers \
    "

deepspeed_options=" \
    --deepspeed \
    --deepspeed_config $config_json \
    --zero-stage $stage \
    --zero-reduce-bucket-size $rbs \
    --zero-allgather-bucket-size $agbs \
    "
if [ "$contigious_gradients" = "true" ]; then
    deepspeed_options="$deepspeed_options --zero-contigious-gradients"
fi
if [ "$reduce_scatter" = "true" ]; then
    deepspeed_options="$deepspeed_options --zero-reduce-scatter"
fi

chkp_opt="--deepspeed-activation-checkpointing --checkpoint-num-layers $chkp_layers"
if [ "$PA" = "true" ]; then
    chkp_opt="$chkp_opt --partition-activations"
fi
if [ "$PA_CPU" = "true" ]; then
    chkp_opt="$chkp_opt --checkpoint-in-cpu"
fi
if [ "$SYNCHRONIZE" = "true" ]; then
    chkp_opt="$chkp_opt --synchronize-each-layer"
fi
if [ "$CC" = "true" ]; then
    chkp_opt="$chkp_opt --contigious-checkpointing"
fi
if [ "$PROFILE" = "true" ]; then
    chkp_opt="$chkp_opt --profile-backward"
fi

deepspeed ${HOSTFILE:+--hostfile $HOSTFILE} \
    --num_nodes $NUM_WORKERS --num_gpus $NUM_GPUS_PER_WORKER --master_port ${MASTER_PORT:-29500} \
    --module tokpack.trainer $gpt_options $deepspeed_options $chkp_opt "$@"
