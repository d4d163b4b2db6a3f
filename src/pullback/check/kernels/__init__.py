"""What is known of Triton's kernels: how they are sent, what compiling takes, which was launched."""
