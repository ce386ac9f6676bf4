#!/bin/bash
# BigScience's GPT-2 for two GPUs: tensor parallel, ZeRO 1, fp16, batch size ramp-up.
# Upper-case variables can be set in the environment; arguments are appended to the flags.
set -e

CHECKPOINT_PATH=${CHECKPOINT_PATH:-checkpoints/gpt2}
VOCAB_FILE=${VOCAB_FILE:-data/gpt2-vocab.json}
MERGE_FILE=${MERGE_FILE:-data/gpt2-merges.txt}
DATA_PATH=${DATA_PATH:-data/meg-gpt2-oscar-en-10k_text_document}
TENSORBOARD_PATH=${TENSORBOARD_PATH:-output_dir/tensorboard}

N_GPUS=${N_GPUS:-2}
TP_SIZE=${TP_SIZE:-2}
PP_SIZE=${PP_SIZE:-1}
MICRO_BATCH_SIZE=${MICRO_BATCH_SIZE:-1}
GLOBAL_BATCH_SIZE=${GLOBAL_BATCH_SIZE:-16}

NLAYERS=${NLAYERS:-2}
NHIDDEN=${NHIDDEN:-8}
NHEADS=${NHEADS:-2}
SEQ_LEN=${SEQ_LEN:-512}

SAVE_INTERVAL=${SAVE_INTERVAL:-50}
EXIT_INTERVAL=${EXIT_INTERVAL:-100}
EVAL_ITERS=${EVAL_ITERS:-10}
TRAIN_SAMPLES=${TRAIN_SAMPLES:-10_000}
RAMPUP_SAMPLES=${RAMPUP_SAMPLES:-1_000}
KILL_SWITCH=${KILL_SWITCH:-/tmp/kill-switch}
ZERO_STAGE=${ZERO_STAGE:-1}

GPT_ARGS=" \
    --num-layers $NLAYERS \
    --hidden-size $NHIDDEN \
    --num-attention-heads $NHEADS \
    --seq-length $SEQ_LEN \
    --max-position-embeddings $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --rampup-batch-size 2 2 $RAMPUP_SAMPLES \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --train-samples $TRAIN_SAMPLES \
    --optimizer adam \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --adam-eps 1e-8 \
    --lr 1e-4 \
    --lr-warmup-samples 5 \
    --min-lr 1e-6 \
    --lr-decay-style cosine \
    --lr-decay-samples 12 \
    --clip-grad 1.0 \
    --weight-decay 1e-1 \
    --embed-layernorm \
    --fp16 \
    --partition-activations \
    --seed 42 \
    --vocab-file $VOCAB_FILE \
    --merge-file $MERGE_FILE \
    "

OUTPUT_ARGS=" \
    --exit-interval $EXIT_INTERVAL \
    --log-interval 10 \
    --save-interval $SAVE_INTERVAL \
    --eval-interval 100 \
    --eval-iters $EVAL_ITERS \
    --checkpoint-activations \
    "

DATA_ARGS=" \
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH \
    --data-path $DATA_PATH \
    --tensorboard-dir $TENSORBOARD_PATH \
    --tensorboard-queue-size 5 \
    --log-timers-to-tensorboard \
    --log-batch-size-to-tensorboard \
    --log-validation-ppl-to-tensorboard \
    --kill-switch-path $KILL_SWITCH \
    "

config_json="./ds_config.json"

# The gradient accumulation steps follow from the batch size, which grows.
cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MICRO_BATCH_SIZE,
  "train_batch_size": $GLOBAL_BATCH_SIZE,
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": $ZERO_STAGE
  },
  "fp16": {
    "enabled": true,
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

export LOGLEVEL=${LOGLEVEL:-WARNING}
LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $N_GPUS \
    --nnodes 1 \
    --rdzv_endpoint ${MASTER_ADDR:-localhost}:${MASTER_PORT:-6777} \
    --rdzv_backend c10d \
    --max_restarts 0 \
    --tee 3 \
    "

$LAUNCHER -m tokpack.trainer \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    --distributed-backend nccl \
    $GPT_ARGS $OUTPUT_ARGS $DATA_ARGS $DEEPSPEED_ARGS "$@"
