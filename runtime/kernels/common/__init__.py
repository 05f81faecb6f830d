"""What the operator folders share: arithmetic precision, norms, activations, row-stable matrix products."""
