"""The orders and index files of the Megatron family, equal to those programs bit by bit."""
