"""What a training run is, before anything is opened: flags, files, model, schedule. No torch."""
