#!/bin/bash
# Microsoft's GPT-3 175B on a blend of two datasets: tensor 8 x pipeline 8, batch 1536.
# Run it on every node, with NODE_RANK 0 to NNODES - 1.
# Upper-case variables can be set in the environment; arguments are appended to the flags.
set -e

GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${NNODES:-8}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-6000}

TP=${TP:-8}
PP=${PP:-8}
NLAYERS=${NLAYERS:-96}
HIDDEN=${HIDDEN:-12288}
HEADS=${HEADS:-96}
SEQ=${SEQ:-2048}
MICRO_BATCH=${MICRO_BATCH:-1}
GLOBAL_BATCH=${GLOBAL_BATCH:-1536}
ZERO_STAGE=${ZERO_STAGE:-1}
USE_DEEPSPEED=${USE_DEEPSPEED:-true}
TRAIN_TOKENS=${TRAIN_TOKENS:-300000000000}
LR_WARMUP_TOKENS=${LR_WARMUP_TOKENS:-375000000}
LR_DECAY_TOKENS=${LR_DECAY_TOKENS:-260000000000}
LOG_INTERVAL=${LOG_INTERVAL:-10}
EVAL_ITERS=${EVAL_ITERS:-10}

DATASET_1=${DATASET_1:-data/wiki_text_document}
DATASET_2=${DATASET_2:-data/openwebtext_text_document}
DATA_PATH="0.35 $DATASET_1 0.65 $DATASET_2"
VOCAB_FILE=${VOCAB_FILE:-data/gpt2-vocab.json}
MERGE_FILE=${MERGE_FILE:-data/gpt2-merges.txt}
OUTPUT=${OUTPUT:-gpt3_175b}

data_options=" \
    --vocab-file $VOCAB_FILE \
    --merge-file $MERGE_FILE \
    --data-path $DATA_PATH \
    --data-cache-path $OUTPUT/index-cache \
    --data-impl mmap"

megatron_options=" \
    --override-opt_param-scheduler \
    --optimizer adam \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --tensor-model-parallel-size $TP \
    --init-method-std 0.005 \
    --lr-decay-tokens $LR_DECAY_TOKENS \
    --lr-warmup-tokens $LR_WARMUP_TOKENS \
    --micro-batch-size $MICRO_BATCH \
    --exit-duration-in-mins 30000000 \
    --global-batch-size $GLOBAL_BATCH \
    --num-layers $NLAYERS \
    --hidden-size $HIDDEN \
    --num-attention-heads $HEADS \
    --seq-length $SEQ \
    --max-position-embeddings $SEQ \
    --train-tokens $TRAIN_TOKENS \
    --train-samples $((2 * TRAIN_TOKENS / SEQ)) \
    --lr 0.6e-4 \
    --min-lr 1.0e-6 \
    --lr-decay-style cosine \
    --split 949,50,1 \
    --log-interval $LOG_INTERVAL \
    --eval-interval 100 \
    --eval-iters $EVAL_ITERS \
    --save-interval 100 \
    --weight-decay 0.1 \
    --clip-grad 1.0 \
    --hysteresis 2 \
    --num-workers 0 \
    --bf16 \
    --use-flash-attn-v2 \
    --no-gradient-accumulation-fusion \
    --no-async-tensor-model-parallel-allreduce \
    --seed 1234 \
    --load $OUTPUT/checkpoints \
    --save $OUTPUT/checkpoints \
    --tensorboard-queue-size 1 \
    --log-timers-to-tensorboard \
    --log-batch-size-to-tensorboard \
    --log-validation-ppl-to-tensorboard \
    --log-optimizer-states-to-tensorboard \
    --tensorboard-dir $OUTPUT/tensorboard \
    --checkpoint-activations"

deepspeed_options="--pipeline-model-parallel-size $PP"
if [ "$USE_DEEPSPEED" = "true" ]; then
    mkdir -p $OUTPUT
    config_json=$OUTPUT/ds_config.json
    cat <<EOT > $config_json
{
  "train_batch_size": $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "steps_per_print": $LOG_INTERVAL,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "bf16": {
    "enabled": true
  },
  "wall_clock_breakdown": false
}
EOT
    deepspeed_options="$deepspeed_options \
        --deepspeed \
        --deepspeed_config $config_json \
        --zero-stage $ZERO_STAGE \
        --deepspeed-activation-checkpointing"
fi

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT \
    -m tokpack.trainer $megatron_options $data_options $deepspeed_options "$@"
