#!/bin/bash
# The comparison of Megatron-DeepSpeed and LiBai: grids of tensor, pipeline and ZeRO.
#     libai_comparison.sh NNODES GPUS NODE_RANK MASTER_ADDR MP PP FP16 RECOMPUTE MICRO GLOBAL LAYERS
#     libai_comparison.sh 2 8 0 10.10.0.8 2 4 true true 24 384
# ZERO_STAGE= disables DeepSpeed. STAGES="7 7 6 4" are the layers of each pipeline stage.
set -e

export OMP_NUM_THREADS=1

NNODES=${1:-1}
GPUS_PER_NODE=${2:-8}
NODE_RANK=${3:-0}
MASTER_ADDR=${4:-"127.0.0.1"}
MASTER_PORT=${MASTER_PORT:-6000}
MP=${5:-1}
PP=${6:-1}
USE_FP16=${7:-true}
ACTIVATION_CHECKPOINT=${8:-false}
MICRO_BATCH_SIZE=${9:-4}
GLOBAL_BATCH_SIZE=${10:-4}
NUM_LAYER=${11:-24}
TRAIN_ITERS=${12:-220}
LOG_PERIOD=${13:-100}

HIDDEN=${HIDDEN:-1024}
HEADS=${HEADS:-16}
SEQ=${SEQ:-1024}
CHECKPOINT_PATH=${CHECKPOINT_PATH:-checkpoints/gpt2}
VOCAB_FILE=${VOCAB_FILE:-libai_dataset/gpt2-vocab.json}
MERGE_FILE=${MERGE_FILE:-libai_dataset/gpt2-merges.txt}
DATA_PATH=${DATA_PATH:-libai_dataset/loss_compara_content_sentence}
ZERO_STAGE=${ZERO_STAGE-1}
STAGES=${STAGES:-}
EVAL_ITERS=${EVAL_ITERS:-10}

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT"

GPT_ARGS=" \
    --num-layers $NUM_LAYER \
    --hidden-size $HIDDEN \
    --num-attention-heads $HEADS \
    --seq-length $SEQ \
    --max-position-embeddings $SEQ \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --lr 0.00015 \
    --train-iters $TRAIN_ITERS \
    --lr-decay-iters 320000 \
    --lr-decay-style cosine \
    --vocab-file $VOCAB_FILE \
    --merge-file $MERGE_FILE \
    --lr-warmup-fraction .01 \
    "

OUTPUT_ARGS=" \
    --log-interval $LOG_PERIOD \
    --save-interval 10000 \
    --eval-interval 1000 \
    --eval-iters $EVAL_ITERS \
    "

DATA_ARGS=" \
    --save $CHECKPOINT_PATH \
    --data-path $DATA_PATH \
    "

DEEPSPEED_ARGS=""
if [ -n "$ZERO_STAGE" ]; then
    config_json="./ds_config.json"
    cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE,
  "train_batch_size": $GLOBAL_BATCH_SIZE,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "fp16": {
    "enabled": $USE_FP16,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 12
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
EOT
    DEEPSPEED_ARGS=" \
        --deepspeed \
        --deepspeed_config $config_json \
        --zero-stage $ZERO_STAGE \
        --deepspeed-activation-checkpointing \
        "
fi

CMD="python3 -m torch.distributed.run $DISTRIBUTED_ARGS -m tokpack.trainer \
    $GPT_ARGS \
    $OUTPUT_ARGS \
    $DATA_ARGS \
    $DEEPSPEED_ARGS \
    --tensor-model-parallel-size $MP \
    --pipeline-model-parallel-size $PP \
    --DDP-impl local"

if $USE_FP16; then
    CMD+=" --fp16"
fi
if $ACTIVATION_CHECKPOINT; then
    CMD+=" --checkpoint-activations"
fi
if [ -n "$STAGES" ]; then
    CMD+=" --pipeline-split $STAGES"
fi

$CMD
