"""Other callers give the same: compilers, `torch.func`, checkpointing, autocast."""
