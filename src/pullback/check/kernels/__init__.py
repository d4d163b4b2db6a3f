"""What is known of Triton's kernels: how they are sent, what they take to compile, launches."""
