"""Distributed training: meshes, FSDP2, and tensor, sequence, context and expert parallelism by logical axes."""
