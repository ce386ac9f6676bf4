"""One short file a command. No command imports another; what they share lies a folder up."""
