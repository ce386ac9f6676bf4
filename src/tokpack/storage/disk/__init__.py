"""Files that appear whole or not at all, copies inside the kernel, and one writer at a time."""
