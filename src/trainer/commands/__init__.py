"""The commands of training; each is an entry point that the command line loads by name."""
