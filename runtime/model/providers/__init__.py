"""What fills the slots of a step: the reference in PyTorch, and our kernels bound to one layer each."""
