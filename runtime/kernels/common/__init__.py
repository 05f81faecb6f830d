"""What the operator folders share: `maths`, `launch` and `workshop`."""
