"""A run over the processes of torch.distributed."""
