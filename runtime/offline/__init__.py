"""What runs on a machine without the GPU it speaks of: an offline check of a command line, and what that needs."""
