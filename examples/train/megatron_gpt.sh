#!/bin/bash
# Megatron-LM's GPT of 345M on one node: tensor 2 x pipeline 2, fp16.
#     megatron_gpt.sh CHECKPOINTS TENSORBOARD VOCAB MERGES DATA
# Upper-case variables can be set in the environment.
set -e

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NUM_NODES=${NUM_NODES:-1}
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-6000}

CHECKPOINT_PATH=${1:-checkpoints/gpt_345m}
TENSORBOARD_LOGS_PATH=${2:-tensorboard}
VOCAB_FILE=${3:-data/gpt2-vocab.json}
MERGE_FILE=${4:-data/gpt2-merges.txt}
DATA_PATH=${5:-data/wiki_text_document}

NUM_LAYERS=${NUM_LAYERS:-24}
HIDDEN=${HIDDEN:-1024}
HEADS=${HEADS:-16}
SEQ=${SEQ:-1024}
MICRO_BATCH=${MICRO_BATCH:-4}
GLOBAL_BATCH=${GLOBAL_BATCH:-64}
TRAIN_ITERS=${TRAIN_ITERS:-500000}
LOG_INTERVAL=${LOG_INTERVAL:-100}
EVAL_ITERS=${EVAL_ITERS:-10}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)

GPT_MODEL_ARGS=(
    --num-layers $NUM_LAYERS
    --hidden-size $HIDDEN
    --num-attention-heads $HEADS
    --seq-length $SEQ
    --max-position-embeddings $SEQ
    --attention-backend auto
)

TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH
    --global-batch-size $GLOBAL_BATCH
    --train-iters $TRAIN_ITERS
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP:-2}
    --pipeline-model-parallel-size ${PP:-2}
)

DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
)

EVAL_AND_LOGGING_ARGS=(
    --log-interval $LOG_INTERVAL
    --save-interval 10000
    --eval-interval 1000
    --save $CHECKPOINT_PATH
    --load $CHECKPOINT_PATH
    --eval-iters $EVAL_ITERS
    --tensorboard-dir $TENSORBOARD_LOGS_PATH
)

torchrun ${DISTRIBUTED_ARGS[@]} -m tokpack.trainer \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DATA_ARGS[@]} \
    ${EVAL_AND_LOGGING_ARGS[@]}
